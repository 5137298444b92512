"""Tests how runs end and resume: the output files are correct, and no work is lost or repeated."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from support import Process, assert_gone, printed_json, run, send, start, stop_by_sigterm, train, train_command, wait_until, write_config

STEPS = 20  # per epoch: 2,560 samples in batches of 128
STOP_SIGNALS = sum(1 << (each - 1) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1))


def by_steps(count, **others):
    return {"every_epochs": 0, "keep_best": False, "every_steps": count, "keep": 5, **others}


def test_a_failed_start_does_not_become_the_latest_run(tmp_path):
    config = write_config(tmp_path, {"max_steps": 2})
    run("--config", config, folder=tmp_path, expect=0)
    latest = tmp_path / "runs" / "config" / "latest"
    good = os.readlink(latest)
    run("--config", config, "--set", "data.limit_train=9999999", folder=tmp_path, expect=3)
    assert os.readlink(latest) == good


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    first = train(tmp_path, {"max_steps": STEPS + 4, "epochs": 9}, processes=2)
    before = {path: path.read_bytes() for path in first.path.iterdir() if path.is_file() and path.name != ".lock"}
    again = train(tmp_path, {"max_steps": STEPS + 4, "epochs": 9}, "--resume", "auto", processes=1)
    assert {path: path.read_bytes() for path in before} == before
    assert again.summary()["world_size"] == 2


def resumed(folder, *flags, output="run", processes=2):
    """Resumes a run until it finishes and checks that its results describe its final weights."""
    with Process(train_command(folder / "run.json", folder / output, processes, "--resume", *flags), folder, folder / output) as process:
        assert process.wait() == 0, process.stderr
    done = process.run_folder
    evaluated = printed_json("evaluate", "--checkpoint", done.path / "model.pt", "--config", folder / "run.json", "--nproc-per-node", 1)
    accuracy = evaluated["test_accuracy"]
    assert f"finished: test accuracy {100 * accuracy:.2f} %, best " in process.stdout
    summary, epochs = done.summary(), done.epochs()
    assert summary["status"] == "finished" and summary["test_accuracy"] == accuracy
    assert summary["test_loss"] == pytest.approx(evaluated["test_loss"], rel=1e-5)
    assert done.read_json("accuracies.json")[-1] == epochs[-1]["test_accuracy"] == accuracy
    assert len({epoch["epoch"] for epoch in epochs}) == len(epochs)
    assert (done.path / "predictions.jsonl").stat().st_size and (done.path / "mistakes.jsonl").exists()
    assert f"<dd>{100 * accuracy:.2f} %</dd>" in (done.path / "report.html").read_text()
    assert done.checkpoints()[-1].name == f"step-{summary['steps']:08}.safetensors"
    assert f"no training steps are left, because of {summary['ended_by']}: " in process.stderr
    assert "different settings" not in process.stderr
    return done


def test_a_run_without_steps_left_evaluates_its_weights(tmp_path):
    """Each changed config ends the run before the step at which it was stopped."""
    patient = {"early_stopping": {"patience": 999, "min_delta": 0.9}, "report": {"histograms": True}}
    stopped = stop_by_sigterm(tmp_path, {"epochs": 1000} | patient, 2, 2 * STEPS + 5)
    for name, setting in {"lower": "epochs=1", "steps": "max_steps=5", "reached": "stop_at_accuracy=0.01",
                          "impatient": "early_stopping.patience=1"}.items():
        shutil.copytree(stopped.path, tmp_path / name)
        done = resumed(tmp_path, "auto", "--set", setting, output=name)
        assert done.summary()["steps"] == stopped.summary()["steps"]
        assert done.summary()["best_test_accuracy"] == max(done.read_json("accuracies.json"))
        assert [epoch["epoch"] for epoch in done.epochs()] == list(range(1, len(done.epochs()) + 1))


def test_a_checkpoint_after_the_last_step_is_still_evaluated(tmp_path):
    folder = train(tmp_path, {"epochs": 2, "checkpoint": by_steps(10)})
    assert [path.name for path in folder.checkpoints()] == [f"step-{step:08}.safetensors" for step in (10, 20, 30, 40)]
    within, end, _, _ = folder.checkpoints()
    assert resumed(tmp_path, within, "--set", "max_steps=10", output="within").read_json("accuracies.json") != []
    elsewhere = resumed(tmp_path, end, "--set", "epochs=1", output="elsewhere")
    assert elsewhere.epochs()[0]["train_loss"] is None  # this folder has no record of the training
    # In its own folder, the run goes back to the checkpoint although its summary has the status finished.
    back = resumed(tmp_path, end, "--set", "epochs=1")
    assert len(back.epochs()) == 1 and back.epochs()[0]["train_loss"] > 0
    assert len(back.read_json("accuracies.json")) == 1
    longer = train(tmp_path, {"epochs": 2, "checkpoint": by_steps(10)}, "--resume", "auto", output="within")
    assert [epoch["epoch"] for epoch in longer.epochs()] == [1, 2] and len(longer.read_json("accuracies.json")) == 2


@pytest.mark.parametrize("changes", [{"max_steps": STEPS + 4}, {"epochs": 1}])
def test_a_run_killed_at_its_end_is_finished_by_a_resume(tmp_path, changes):
    """The run had saved its last checkpoint, but not yet recorded that it finished."""
    folder = train(tmp_path, {"epochs": 9} | changes)
    expected = folder.epochs()
    (folder.path / "model.pt").unlink()
    (folder.path / "summary.json").write_text('{"status": "running"}')
    done = resumed(tmp_path, "auto")
    assert [epoch["test_accuracy"] for epoch in done.epochs()] == [epoch["test_accuracy"] for epoch in expected]


def test_losing_a_process_in_the_evaluation_after_max_steps_loses_no_results(tmp_path):
    changes = {"max_steps": 3, "batch_size": 64, "model": {"name": "resnet18"}, "launch": {"max_restarts": 1},
               "data": {"limit_train": 320, "limit_test": 300}}  # a snapshot after every other step
    with start(tmp_path, changes) as process:
        pid = process.wait_for_ranks(2)[1]
        for rank in (0, 1):  # a snapshot is valid only if both ranks have sealed it
            process.wait_for_phase(rank, "evaluation", 3)
        send(pid, signal.SIGKILL)
        assert process.wait() == 0, process.stderr
    done = process.run_folder
    assert "resuming from memory: epoch 1, step 3" in process.stderr
    assert done.read_json("accuracies.json") == [done.summary()["test_accuracy"]] == [epoch["test_accuracy"] for epoch in done.epochs()]


def test_a_run_that_goes_back_drops_the_records_of_abandoned_steps(tmp_path):
    first = train(tmp_path, {"epochs": 3})
    older = first.checkpoints()[0]
    with start(tmp_path, {"epochs": 1000}, "--resume", older) as process:
        process.wait_for_phase(0, "training", STEPS + 2)
        process.stop(signal.SIGTERM, 143)
    assert len(first.read_json("accuracies.json")) == len(first.epochs()) == first.summary()["epochs"]
    assert first.summary()["epochs"] < 3
    assert not (first.path / "model.pt").exists() and not (first.path / "mistakes.jsonl").exists()
    best = first.path / "checkpoints" / "best.safetensors"
    assert any(best.samefile(path) for path in first.checkpoints())


def test_a_run_that_starts_from_scratch_drops_the_records_of_the_killed_run(tmp_path):
    changes = {"epochs": 1000, "checkpoint": {"every_epochs": 1000, "keep_best": False}}
    with start(tmp_path, changes) as process:
        process.wait_for_step(STEPS + 1)
        process.send(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "run" / "accuracies.json").exists()
    with start(tmp_path, changes, "--resume", "auto") as process:
        process.wait_for_phase(0, "training", 1)
        process.stop(signal.SIGTERM, 143)
    assert len(process.run_folder.epochs()) == 0
    assert not (tmp_path / "run" / "accuracies.json").exists()


@pytest.mark.parametrize("number, code, resumed", [(signal.SIGTERM, 143, False), (signal.SIGINT, 130, True)])
def test_a_run_stopped_before_its_first_step_reports_that_and_how_to_continue(tmp_path, number, code, resumed):
    if resumed:
        train(tmp_path, {"epochs": 1})
    with start(tmp_path, {"epochs": 1000}, "--resume", "auto") as process:
        process.wait_for_phase(0, "startup")  # LibTorch is still being loaded
        process.stop(number, code)
    assert f"stopped by {number.name} before the first step: nothing was saved" in process.stderr
    assert bool(process.run_folder.checkpoints()) == resumed
    if resumed:
        assert f"newest checkpoint: {process.run_folder.checkpoints()[-1]}" in process.stderr
        assert "continue with: " in process.stderr


def test_ctrl_c_stops_a_run_that_a_shell_started_in_the_background(tmp_path):
    """Background processes of a shell inherit an ignored SIGINT."""
    config = write_config(tmp_path, {"epochs": 1000})
    command = ["bash", "-c", 'trap "" INT; exec "$@"', "bash", *train_command(config, tmp_path / "run", 2)]
    for phase in ("startup", "training"):
        with Process(command, tmp_path, tmp_path / "run") as process:
            process.wait_for_phase(0, phase)
            process.stop(signal.SIGINT, 130)


def test_a_signal_after_the_last_step_does_not_contradict_the_output(tmp_path):
    with start(tmp_path, {"epochs": 1}) as process:
        wait_until(lambda: "epoch 1/1: train" in process.stderr, "the last epoch's line", interval=0)
        process.send(signal.SIGINT)
        assert process.wait() in (0, 130), process.stderr
    assert "before the first step" not in process.stderr


def test_the_failure_block_for_unreadable_data_is_complete(tmp_path):
    """The block is also complete if the launcher, not a rank, reads the data."""
    folder = train(tmp_path, {"epochs": 1})
    lost = ("--set", f"data.root={tmp_path}", "--resume", "auto")
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (tmp_path / "mnist" / name).write_bytes(b"cut")
    for processes in (1, 2):
        with start(tmp_path, {"epochs": 2}, *lost, processes=processes) as process:
            assert process.wait() == 3
            assert f"{tmp_path}/mnist/train-images-idx3-ubyte" in process.stderr
            assert process.stderr.startswith("mnist-train failed: loading data: ") or (
                "\nmnist-train failed: loading data: " in process.stderr), process.stderr
            assert f"newest checkpoint: {folder.checkpoints()[-1]}" in process.stderr
            assert "continue with: " in process.stderr


def test_libtorch_prints_nothing_itself(tmp_path):
    """Its stack traces would hide the cause."""
    config = write_config(tmp_path)
    trained = train(tmp_path, {"max_steps": 2})
    (tmp_path / "garbage.pt").write_bytes(b"x" * 100)
    for command in (("evaluate", "--checkpoint", tmp_path / "garbage.pt", "--config", config),
                    ("preview", "--config", config, "--output", tmp_path / "none" / "x.png"),
                    ("export", "--checkpoint", trained.path / "model.pt", "--output", "-")):
        result = run(*command, *(() if command[0] == "export" else ("--nproc-per-node", 3)), folder=tmp_path)
        assert result.returncode != 0
        assert "frame #" not in result.stderr and "[W" not in result.stderr, result.stderr


def test_a_restart_before_the_first_checkpoint_uses_the_snapshot_or_the_given_file(tmp_path):
    train(tmp_path, {"epochs": 1}, output="first")
    file = tmp_path / "first" / "checkpoints" / f"step-{STEPS:08}.safetensors"
    changes = {"epochs": 3, "checkpoint": {"every_epochs": 3, "keep_best": False}, "launch": {"max_restarts": 1}}
    with start(tmp_path, changes, "--resume", file, output="second") as process:
        process.wait_for_step(STEPS + 1)
        send(process.ranks()[1], signal.SIGKILL)
        assert process.wait() == 0
        # The snapshot in memory after the first step may come too late.
        first, second = re.findall(r"resuming from (\S+): epoch", process.stderr)
        assert first == str(file) and second in (str(file), "memory"), process.stderr


def test_a_requeued_job_with_one_task_resumes(tmp_path):
    slurm = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    changes = {"max_steps": 4}
    train(tmp_path, changes, variables=slurm)
    train(tmp_path, changes, variables=slurm, expect=2)
    again = train(tmp_path, changes, variables={**slurm, "SLURM_RESTART_COUNT": "1"})
    assert again.last_step() == 4


def test_a_failed_save_after_sigterm_is_an_error(tmp_path):
    with start(tmp_path, {"epochs": 1000, "checkpoint": {"every_epochs": 500, "keep_best": False}}) as process:
        process.wait_for_step(1)
        (tmp_path / "run" / "checkpoints").write_text("in the way")
        process.stop(signal.SIGTERM, 5)
        assert "mnist-train failed" in process.stderr


SIGNALS = {  # name: signals sent in quick succession, exit code
    "a closed terminal": ([signal.SIGHUP], 143),
    "SIGQUIT": ([signal.SIGQUIT], 143),
    "SIGINT, then SIGTERM": ([signal.SIGINT, signal.SIGTERM], 130),
}


@pytest.mark.parametrize("case", SIGNALS)
def test_a_signal_saves_and_ends_the_run(tmp_path, case):
    numbers, code = SIGNALS[case]
    with start(tmp_path, {"epochs": 1000}) as process:
        process.wait_for_step(3)
        assert process.run_folder.summary()["status"] == "running"
        # A handler's frame would corrupt a rank's memory: oneDNN points the stack pointer at the heap during matrix products.
        for pid in process.ranks().values():
            caught = re.search(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
            assert int(caught[1], 16) & STOP_SIGNALS == 0
        for number in numbers:
            process.send(number)
        assert process.wait() == code, process.stderr
        assert "stopped and saved" in process.stderr and "failed" not in process.stderr, process.stderr
        assert process.run_folder.checkpoints() and process.alive() == []


def test_warnings_and_results_use_separate_streams(tmp_path):
    config = write_config(tmp_path, {"max_steps": 2})
    wrong_root = ("--set", f"data.root={tmp_path}")
    trained = run("--config", config, "--output", "run", *wrong_root, folder=tmp_path, expect=0)
    assert f"no usable data set mnist in data.root {tmp_path}" in trained.stderr
    refused = run("--config", config, "--output", "other", "--set", "data.root=absent", folder=tmp_path, expect=3)
    assert f"{tmp_path}/absent: no such folder (data.root)" in refused.stderr
    assert re.fullmatch(r"finished: test accuracy \S+ %, best \S+ % in epoch 1; \S+ s; run/model.pt\n", trained.stdout)
    (tmp_path / "logs").mkdir()
    evaluated = printed_json("evaluate", "--checkpoint", "run/model.pt", "--config", config, *wrong_root, folder=tmp_path)
    assert set(evaluated) == {"test_loss", "test_accuracy", "test_balanced_accuracy", "test_top5_accuracy", "samples", "classes"}
    assert list((tmp_path / "logs").iterdir()) == []


def test_config_errors_are_written_to_torchruns_error_file(tmp_path):
    file = tmp_path / "error.json"
    run("--config", "absent.json", folder=tmp_path, variables={"TORCHELASTIC_ERROR_FILE": str(file)}, expect=2)
    assert "absent.json" in json.loads(file.read_text())["message"]["message"]


@pytest.mark.clock
def test_a_second_ctrl_c_reports_lost_progress_and_leaves_no_partial_file(tmp_path):
    with start(tmp_path, {"epochs": 1000, "checkpoint": by_steps(5)}) as process:
        wait_until(process.run_folder.checkpoints, "a checkpoint")
        process.wait_for_step(7)
        send(process.ranks()[0], signal.SIGSTOP)  # the rank that would save
        partial = process.run_folder.path / "checkpoints" / "step-00009999.safetensors.partial-1"
        partial.write_text("half")
        process.send(signal.SIGINT)
        time.sleep(0.5)
        assert process.popen.poll() is None
        process.send(signal.SIGINT)
        asked_at = time.monotonic()
        assert process.wait() == 130
        assert time.monotonic() - asked_at < 1
        assert_gone(process, within_s=1)
        said = process.stderr
    assert "SIGINT a second time" in said and "was lost" in said, said
    newest = process.run_folder.checkpoints()[-1]
    assert f"newest checkpoint: {newest}" in said and "--resume auto" in said, said
    assert not list(process.run_folder.path.rglob("*.partial-*"))
    assert process.run_folder.summary()["status"] == "stopped"
    assert "running: this page" not in (process.run_folder.path / "report.html").read_text()


def test_a_rank_lost_before_it_starts_is_a_failure_even_if_the_run_is_stopped(tmp_path):
    with start(tmp_path, {"epochs": 1000}) as process:
        wait_until(lambda: process.board() and process.fork_server(), "the fork server", interval=0)
        process.send(signal.SIGSTOP)  # so that it sees the dead server and SIGTERM at once
        server = process.fork_server()
        send(server, signal.SIGKILL)
        process.send(signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{server}/fd/0").exists(), "the end of the fork server")
        process.send(signal.SIGCONT)
        assert process.wait() != 0, process.stderr
        assert "mnist-train" in process.stderr


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (None, 4)])
def test_a_stopped_fork_server_does_not_block_the_launcher(tmp_path, number, code):
    launch = {"hang_timeout_s": 2 if number is None else 100, "max_restarts": 1}
    with start(tmp_path, {"epochs": 1000, "launch": launch}) as process:
        wait_until(lambda: process.board() and process.fork_server(), "the fork server", interval=0)
        send(process.fork_server(), signal.SIGSTOP)
        if number is None:  # the restart needs a new server
            wait_until(lambda: "restarting" in process.stderr or process.popen.poll() is not None, "the restart")
            wait_until(lambda: process.board() and process.fork_server(), "the next fork server", interval=0)
            send(process.fork_server(), signal.SIGSTOP)
        else:
            process.send(number)
        assert process.wait(20) == code, process.stderr
        assert_gone(process, within_s=1)
