"""A run that is interrupted and resumed has the same outcome as an uninterrupted one."""

import functools
import re
import shlex
import shutil
import signal

import numpy
import pytest
from support import (RunFolder, averaging, merged, own_data, relative_difference, run, start, stop_by_sigterm, train,
                     wait_until, write_config, write_idx_folder)

PER_EPOCH = 20
TOTAL = 3 * PER_EPOCH
# Batches of 45 samples are not divisible by 2, and the last batch of an epoch has 31.
CONFIG = {"epochs": 3, "batch_size": 45, "data": {"limit_train": 886}}
RESUME = ("--resume", "auto")
# Name: (processes, changes to CONFIG). Together, they cover all state that a resumed run must restore within an epoch.
RECIPES = {
    "plain": (1, {}),
    "bf16": (2, averaging("shared_memory") | {
        "epochs": 6, "precision": "bf16", "optimizer": "adamw", "ema": {"decay": 0.9}, "class_weights": "balanced",
        "schedule": {"name": "one_cycle", "max_learning_rate": 0.05},
        "parameters": [{"match": "conv.*", "frozen": True}, {"match": "head.*", "learning_rate_factor": 2, "weight_decay": 0}],
        "data": {"limit_train": 886, "augment": [
            {"name": "random_crop", "padding": 2, "fill": "background"},
            {"name": "random_resized_crop", "size": 26, "scale": [0.5, 1]}, "vertical_flip",
            {"name": "color_jitter", "brightness": 0.4, "contrast": [0.5, 1.5]}, "trivial_augment",
            {"name": "random_erasing", "fill": 128}, {"name": "cutmix", "alpha": 0.4}]},
        "model": {"layers": [
            {"name": "conv2d", "out_channels": 4, "kernel_size": 5, "as": "conv"}, "batch_norm", "relu",
            {"name": "max_pool2d", "kernel_size": 2}, {"name": "dropout", "p": 0.3}, "flatten",
            {"name": "linear", "out_features": 20}, "relu", "dropout",
            {"name": "linear", "out_features": "classes", "as": "head"}]}}),
    "fp32": (3, averaging("bucketed") | {
        "epochs": 30, "learning_rate": 0.3, "gradient_accumulation_steps": 2, "max_gradient_norm": 1, "ema": {"decay": 0.9},
        "schedule": {"name": "plateau", "patience": 0, "factor": 0.5, "warmup_epochs": 0.5},
        "early_stopping": {"patience": 3, "min_delta": 0.02},
        "data": {"limit_train": 443, "limit_test": 100, "validation": 0.2, "augment": [
            {"name": "random_crop", "padding": 2}, "horizontal_flip", {"name": "rotate", "degrees": 10},
            {"name": "cutout", "size": 8}, {"name": "mixup", "alpha": 0.4}]}}),
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Returns a cached function from (processes, strategy) to the complete run."""
    return functools.cache(lambda processes, strategy: train(tmp_path_factory.mktemp("whole"), CONFIG | averaging(strategy),
                                                             processes=processes))


def same_outcome(folder, expected):
    """Asserts bit-identical weights, and the same records except for times."""
    timeless = [
        [{key: value for key, value in line.items() if key != "time" and "second" not in key} for line in each.lines()]
        for each in (folder, expected)
    ]
    assert timeless[0] == timeless[1]
    assert folder.read_json("accuracies.json") == expected.read_json("accuracies.json")
    assert folder.summary()["samples_seen"] == expected.summary()["samples_seen"]
    assert folder.summary()["best_test_accuracy"] == expected.summary()["best_test_accuracy"]
    assert folder.digest() == expected.digest()


def cut_short(folder, changes, processes, step):
    """Starts a run and kills it after `step`; returns its folder."""
    with start(folder, changes, processes=processes) as process:
        process.wait_for_step(step)
        process.send(signal.SIGKILL)
        process.wait()
    return process.run_folder


def check_that_a_stopped_run_resumes(folder, changes, processes):
    """Asserts that a stopped and resumed run has the same outcome as an undisturbed one; returns the undisturbed run."""
    whole = train(folder, changes, processes=processes, output="whole")
    step = whole.last_step() // 2 + 2
    stopped = stop_by_sigterm(folder, changes, processes, step)
    summary = stopped.summary()
    assert summary["status"] == "stopped"
    assert step <= summary["steps"] < whole.last_step()
    assert [int(path.stem[5:]) for path in stopped.checkpoints()][-1] == summary["steps"]
    assert not (stopped.path / "model.pt").exists()
    same_outcome(train(folder, changes, *RESUME, processes=processes), whole)
    return whole


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_stopped_within_an_epoch_resumes_bit_identically(tmp_path, recipe):
    processes, changes = RECIPES[recipe]
    whole = check_that_a_stopped_run_resumes(tmp_path, CONFIG | changes, processes)
    rates = [step["learning_rate"] for step in whole.steps()]
    assert recipe == "plain" or min(rates[len(rates) // 2:]) < max(rates)
    assert whole.summary()["ended_by"] == ("early_stopping" if recipe == "fp32" else "epochs")


def test_resume_warns_if_a_new_length_changes_the_schedule(tmp_path):
    short = {"epochs": 2, "batch_size": 32, "data": {"limit_train": 320, "limit_test": 10}}
    for name, moves in (("cosine", True), ("step", False)):
        schedule = {"schedule": {"name": name}}
        train(tmp_path, short | schedule, output=name)
        resumed = train(tmp_path, short | schedule | {"epochs": 4}, *RESUME, output=name)
        assert (f"schedule {name} spans the whole run" in resumed.stderr) == moves, resumed.stderr


def test_a_killed_run_resumes_from_a_checkpoint_within_an_epoch(tmp_path, uninterrupted):
    changes = CONFIG | averaging("flat") | {"checkpoint": {"every_steps": 8, "every_epochs": 0, "keep_best": False}}
    folder = cut_short(tmp_path, changes, 3, 3 * 8 + 1)  # the third checkpoint may be incomplete, but the second is not
    folder.checkpoints()[-1].unlink()  # so that steps after the newest checkpoint are recorded
    saved = int(folder.checkpoints()[-1].stem[5:])
    assert saved % 8 == 0 and folder.last_step() > saved
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"event":"step","ep')  # a crash may leave an incomplete line
    resumed = train(tmp_path, changes, *RESUME, processes=3)
    assert f"step {saved}" in resumed.stderr
    assert [step["step"] for step in resumed.steps()] == list(range(1, TOTAL + 1))
    same_outcome(resumed, uninterrupted(3, "flat"))


def test_a_resume_removes_partial_files_of_a_killed_run_even_if_it_saves_nothing(tmp_path):
    folder = train(tmp_path, CONFIG | {"max_steps": 3})
    left = [folder.path / name for name in ("checkpoints/.best.partial-77", "summary.json.partial-77")]
    for steps in (3, 5):
        for path in left:
            path.write_text("half")
        resumed = train(tmp_path, CONFIG | {"max_steps": steps}, *RESUME)
        assert ("already finished" in resumed.stderr) == (steps == 3)
        assert not any(path.exists() for path in left)


@pytest.mark.parametrize("length, ended_by, longer", [
    ({"epochs": 1}, "epochs", "epochs=2"), ({"max_steps": 3}, "max_steps", "max_steps=6"),
    ({"stop_at_accuracy": 0.01}, "stop_at_accuracy", "stop_at_accuracy=null")])
def test_a_finished_run_reports_how_to_continue_training(tmp_path, length, ended_by, longer):
    folder = train(tmp_path, CONFIG | {"epochs": 2} | length)
    assert folder.summary()["ended_by"] == ended_by
    assert (f"ended by {ended_by} in epoch 1" in folder.stderr) == (ended_by != "epochs")
    steps = folder.last_step()
    told = train(tmp_path, CONFIG | {"epochs": 2} | length, *RESUME).stderr
    assert f" has already finished (ended by {ended_by}); to continue training: " in told, told
    command = shlex.split(told.split("to continue training: ")[1].splitlines()[0])
    assert command[-2:] == ["--set", longer]
    run(*command[1:], folder=tmp_path, expect=0)
    assert folder.last_step() > steps


def test_resume_lists_the_settings_that_differ(tmp_path):
    first = train(tmp_path, CONFIG | {"max_steps": 3}, output="first")
    others = CONFIG | {"max_steps": 5, "seed": 5, "label_smoothing": 0.1, "log_interval": 2}
    resumed = train(tmp_path, others, "--resume", first.checkpoints()[-1])
    (warning,) = [line for line in resumed.stderr.splitlines() if "different settings" in line]
    assert warning.endswith(": label_smoothing was 0 and is now 0.1; seed was 1 and is now 5")
    again = train(tmp_path, others | {"max_steps": 6}, *RESUME)
    assert "different settings" not in again.stderr


@pytest.fixture(scope="module")
def with_checkpoints(tmp_path_factory, uninterrupted):
    """Returns a finished run that kept the checkpoints of several steps."""
    changes = merged(CONFIG, {"checkpoint": {"every_steps": 12, "keep": 20}})
    folder = train(tmp_path_factory.mktemp("steps"), changes, processes=2)
    assert folder.digest() == uninterrupted(2, "flat").digest()
    return folder


def test_a_given_checkpoint_resumes_in_another_folder(tmp_path, uninterrupted, with_checkpoints):
    names = [path.name for path in with_checkpoints.checkpoints()]
    middle = with_checkpoints.path / "checkpoints" / "step-00000024.safetensors"
    assert middle.name in names
    resumed = train(tmp_path, CONFIG, "--resume", middle, processes=2)
    assert resumed.digest() == uninterrupted(2, "flat").digest()
    assert resumed.read_json("accuracies.json") == uninterrupted(2, "flat").read_json("accuracies.json")
    assert [step["step"] for step in resumed.steps()] == list(range(25, TOTAL + 1))
    assert [path.name for path in with_checkpoints.checkpoints()] == names


def test_a_run_can_go_back_to_an_older_checkpoint_of_its_folder(tmp_path, uninterrupted, with_checkpoints):
    shutil.copytree(with_checkpoints.path, tmp_path / "run")
    resumed = train(tmp_path, CONFIG, "--resume", tmp_path / "run/checkpoints/step-00000012.safetensors", processes=2)
    same_outcome(resumed, uninterrupted(2, "flat"))


# Halves the weights in every step, so that the accuracy drops.
RUINED = CONFIG | {"epochs": 2, "weight_decay": 50}


def test_the_best_checkpoint_comes_along_to_another_folder_and_is_set_aside_without_keep_best(tmp_path):
    first = train(tmp_path, CONFIG | {"epochs": 1}, output="first")
    saved = first.checkpoints()[-1]
    other = train(tmp_path, RUINED, "--resume", saved)
    assert other.summary()["best_epoch"] == 1
    assert (other.path / "checkpoints/best.safetensors").read_bytes() == saved.read_bytes()
    without = train(tmp_path, RUINED | {"checkpoint": {"keep_best": False}}, *RESUME, output="first")
    assert "final weights: " in without.stderr and not (first.path / "checkpoints/best.safetensors").exists()
    assert (first.path / "checkpoints/abandoned/best.safetensors").exists()


def test_a_resumed_run_forgets_an_evaluation_within_an_epoch(tmp_path):
    partial = train(tmp_path, CONFIG | {"max_steps": 8}).summary()
    done = train(tmp_path, RUINED | {"epochs": 1}, *RESUME)
    assert done.summary()["best_test_accuracy"] == done.epochs()[-1]["test_accuracy"] < partial["test_accuracy"]
    assert (done.path / "checkpoints/best.safetensors").samefile(done.checkpoints()[-1])
    assert done.rows("lineage.jsonl")[-1]["changed"] == {"epochs": [3, 1], "max_steps": [8, None], "weight_decay": [0, 50]}


@pytest.mark.parametrize("every_epochs", [0, 1])
def test_a_resumed_run_remembers_the_best_epoch_before_an_evaluation_within_an_epoch(tmp_path, every_epochs):
    checkpoint = {"checkpoint": {"every_epochs": every_epochs}}
    partial = train(tmp_path, CONFIG | checkpoint | {"max_steps": TOTAL // 3 + 8})
    assert partial.summary()["best_epoch"] == 2  # otherwise the test is vacuous
    done = train(tmp_path, RUINED | checkpoint, *RESUME)
    assert (done.summary()["best_epoch"], done.summary()["best_test_accuracy"]) == (1, done.epochs()[0]["test_accuracy"])
    assert "missing" not in done.stderr and (done.path / "checkpoints/best.safetensors").exists()


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_automatic_resume_skips_a_damaged_checkpoint_with_a_warning(tmp_path, uninterrupted, with_checkpoints):
    shutil.copytree(with_checkpoints.path, tmp_path / "run")
    newest, before = RunFolder(tmp_path / "run").checkpoints()[:-3:-1]
    flip(newest, newest.stat().st_size // 2)
    resumed = train(tmp_path, CONFIG, *RESUME, processes=2)
    assert newest.name in resumed.stderr and "trying the previous one" in resumed.stderr
    assert re.search(rf"resuming from .*{before.name}", resumed.stderr)
    same_outcome(resumed, uninterrupted(2, "flat"))


def test_automatic_resume_with_only_damaged_checkpoints_is_refused(tmp_path, with_checkpoints):
    shutil.copytree(with_checkpoints.path, tmp_path / "run")
    for path in RunFolder(tmp_path / "run").checkpoints():
        flip(path, 0)
    (tmp_path / "run" / "checkpoints" / "best.safetensors").unlink(missing_ok=True)
    process = train(tmp_path, CONFIG, *RESUME, processes=2, expect=5)
    assert all(path.name in process.stderr for path in with_checkpoints.checkpoints())
    # The message must not suggest the same command, which would fail again.
    assert "--resume auto" not in process.stderr and "newest checkpoint" not in process.stderr
    (command,) = re.findall("start again with: (.*)", process.stderr)
    assert command.endswith(f"mnist-train --config {tmp_path}/run/config.json --output {tmp_path}/run-2")
    run(*shlex.split(command)[1:], expect=0)


def test_a_damaged_checkpoint_is_refused_and_an_intact_one_suggested(tmp_path, with_checkpoints):
    shutil.copytree(with_checkpoints.path, tmp_path / "run")
    *_, before, newest = RunFolder(tmp_path / "run").checkpoints()
    flip(newest, -1)
    config = write_config(tmp_path, CONFIG)
    for command in (["--config", config, "--resume", newest], ["evaluate", "--checkpoint", newest],
                    ["export", f"--checkpoint={newest}", "--format", "pt", "--output", tmp_path / "x.pt"]):
        refused = run(*command, expect=5).stderr
        flag = "--resume" if "--resume" in command else "--checkpoint"
        assert refused == f"{flag} {newest}: is damaged: its checksum does not match its content; {before} is intact\n"
    weights = ["--config", config, "--set", f"model.weights={newest}", "--output", tmp_path / "from weights"]
    refused = run(*weights, expect=5).stderr
    assert f": /model/weights: {newest}: is damaged: " in refused and refused.endswith(f"{before} is intact\n")


def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path, with_checkpoints):
    shutil.copytree(with_checkpoints.path, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").checkpoints()[-1]
    refused = train(tmp_path, CONFIG | {"model": {"name": "lenet"}}, *RESUME, processes=2, expect=5)
    assert (f'mnist-train failed: {newest}: was trained with model "net", but the config asks for "lenet"; set model.name to '
            '"net", or start a new run with another --output and no --resume\n') in refused.stderr


def test_a_checkpoint_is_refused_if_the_data_files_have_changed(tmp_path):
    pixels = numpy.arange(60 * 28 * 28, dtype=numpy.uint8).reshape(60, 28, 28)
    folder = write_idx_folder(tmp_path / "set", pixels, numpy.arange(60) % 10)
    data = own_data("idx", folder)
    trained = train(tmp_path, {"epochs": 1, "data": data})
    shutil.rmtree(folder)
    write_idx_folder(tmp_path / "set", 255 - pixels, numpy.arange(60) % 10)
    refused = train(tmp_path, {"epochs": 2, "data": data}, "--resume", trained.checkpoints()[-1], expect=5)
    assert "was trained on different data: its config names the same data, so the files differ" in refused.stderr
    # The command that resumes would be refused like this one.
    assert f"newest checkpoint: {trained.checkpoints()[-1]}" in refused.stderr and "continue with" not in refused.stderr


def test_a_resume_with_a_different_number_of_processes_uses_each_sample_once(tmp_path):
    # Batches are small, so that rounding rarely changes which pixel max pooling selects (see processes_test.py).
    changes = {"epochs": 1, "batch_size": 8, "data": {"limit_train": 157}, "checkpoint": {"every_steps": 7, "keep": 9}}
    whole = train(tmp_path, changes, processes=2, output="whole")
    resumed = train(tmp_path, changes, "--resume", whole.checkpoints()[0], processes=3)
    assert whole.checkpoints()[0].name == "step-00000007.safetensors"
    assert resumed.summary()["world_size"] == 3
    assert resumed.summary()["samples_seen"] == whole.summary()["samples_seen"] == 157
    assert [step["step"] for step in resumed.steps()] == list(range(8, PER_EPOCH + 1))
    assert relative_difference(resumed.weights(), whole.weights()) < 1e-4
    assert resumed.epochs()[0]["train_loss"] == pytest.approx(whole.epochs()[0]["train_loss"], rel=1e-5)


@pytest.mark.clock
def test_a_folder_in_use_is_refused_with_the_pid_and_is_free_after_a_kill(tmp_path):
    with start(tmp_path, CONFIG | {"epochs": 1000}, processes=2) as first:
        first.wait_for_step(1)
        for flags in (RESUME, ()):
            second = run("--config", tmp_path / "run.json", "--output", tmp_path / "run", *flags, timeout=2, expect=2)
            assert f"process {first.pid}" in second.stderr
        assert first.popen.poll() is None
        first.send(signal.SIGKILL)
        first.wait()
        wait_until(lambda: not first.alive(), "the end of the workers", timeout=5)
    train(tmp_path, CONFIG | {"epochs": 1}, *RESUME, processes=2)
