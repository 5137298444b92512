"""Runs scripts/integrations/flyte_workflow.py on this machine with the real `pyflyte run`."""

import json
import re
import signal
import subprocess

import pytest
from python_tools import PYTHON, SCRIPTS, has_module, run_python
from support import BINARY, all_pids, environment, environment_of, executable_of, read_pt, send, wait_until

pytestmark = pytest.mark.skipif(not has_module("flytekit"),
                                reason="flytekit is not installed; scripts/test --integrations installs it for Python before 3.13")

SETTINGS = {"data.limit_train": "1000", "data.limit_test": "200", "device": "cpu", "launch.processes_per_node": "2"}


def variables(folder):
    return {"HOME": folder, "MNIST_TRAIN_BINARY": BINARY, "MNIST_TRAIN_RUNS": folder / "runs",
            "TORCHELASTIC_ERROR_FILE": folder / "error.json", "FLYTE_LOCAL_MARK": folder}


def command(**hyperparameters):
    settings = SETTINGS | hyperparameters.pop("settings", {})
    hp = json.dumps({"batch_size": 50, **hyperparameters, "settings": settings})
    return ["-m", "flytekit.clis.sdk_in_container.pyflyte", "run", SCRIPTS / "flyte_workflow.py", "mnist_workflow", "--hp", hp]


def pyflyte(folder, expect=0, **hyperparameters):
    return run_python(*command(**hyperparameters), folder=folder, variables=variables(folder), expect=expect)


def runs(folder):
    return [path.parent for path in (folder / "runs").glob("*/summary.json")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flyte")
    return folder, pyflyte(folder, epochs=2)


def test_the_workflow_returns_accuracies_and_the_model(finished):
    folder, result = finished
    (run,) = runs(folder)
    accuracies = json.loads((run / "accuracies.json").read_text())
    assert len(accuracies) == 2
    shown = re.search(r"epoch_accuracies=\[([^\]]*)\]", result.stdout)
    assert [float(number) for number in shown[1].split(",")] == accuracies, result.stdout
    assert "conv1.weight" in read_pt(run / "model.pt")
    assert re.search(r"model_file=\S*model\.pt", result.stdout), result.stdout


def test_the_tutorials_batch_size_is_per_process(finished):
    (run,) = runs(finished[0])
    config = json.loads((run / "config.json").read_text())
    assert config["batch_size_per_process"] == 50
    assert json.loads((run / "summary.json").read_text())["world_size"] == 2


def test_results_for_the_same_hyperparameters_come_from_the_cache(finished):
    folder, first = finished
    (run,) = runs(folder)
    before = (run / "summary.json").stat().st_mtime_ns
    again = pyflyte(folder, epochs=2)
    assert (run / "summary.json").stat().st_mtime_ns == before
    assert re.findall(r"epoch_accuracies=\S+", again.stdout) == re.findall(r"epoch_accuracies=\S+", first.stdout)


def test_different_hyperparameters_start_a_separate_run(finished):
    folder, _ = finished
    (first,) = runs(folder)
    pyflyte(folder, epochs=1)
    (second,) = set(runs(folder)) - {first}
    assert len(json.loads((second / "accuracies.json").read_text())) == 1
    assert len(json.loads((first / "accuracies.json").read_text())) == 2


def test_an_invalid_config_is_not_retried(tmp_path):
    result = pyflyte(tmp_path, expect=None, settings={"learning_rat": "1"})
    text = result.stdout + result.stderr
    assert result.returncode != 0
    assert "mnist-train exited with 2" in text and "learning_rate" in text
    assert not (tmp_path / "recoverable_error").exists()


def test_a_lost_process_is_retried(tmp_path):
    settings = {"launch.max_restarts": "0", "data.limit_train": "10000"}
    own = variables(tmp_path)
    process = subprocess.Popen([PYTHON, *map(str, command(epochs=1000, settings=settings))], cwd=tmp_path,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env=environment(**own))

    def workers():
        return [pid for pid in all_pids() if "mnist-train-worker" in executable_of(pid)
                and environment_of(pid).get("FLYTE_LOCAL_MARK") == str(tmp_path)]

    try:
        wait_until(lambda: list((tmp_path / "runs").glob("*/metrics.jsonl")) or process.poll() is not None, "a step")
        send(workers()[-1], signal.SIGKILL)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    assert "mnist-train exited with 4" in text and "Recoverable" in text, text
    assert (tmp_path / "recoverable_error").exists()
