"""Tests processes that die, hang or receive signals, and write errors: a run ends in time, reports one cause and leaves no process."""

import re
import resource
import signal
import time

import pytest
from support import (BINARY, LONG_RUN, Process, assert_gone, at_once, averaging, merged, send, start, swept, train,
                     wait_until, write_config)


def only_failure_block(process):
    """Returns the only failure block, whose first line has the cause."""
    blocks = re.findall(r"^mnist-train failed: .*(?:\n  .*)*", process.stderr, re.MULTILINE)
    assert len(blocks) == 1, process.stderr
    return blocks[0]


# A lost process


@pytest.mark.clock
@pytest.mark.parametrize("processes, rank, step", [(2, 0, 12), (3, 2, 25)])
def test_a_killed_rank_ends_the_run_and_is_reported(tmp_path, processes, rank, step):
    with start(tmp_path, LONG_RUN, processes=processes) as process:
        process.wait_for_step(step)
        pid = process.wait_for_ranks(processes)[rank]
        send(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        assert process.wait() == 4
        assert time.monotonic() - killed_at < 3
        assert_gone(process, within_s=2)
        block = only_failure_block(process)
    assert f"rank {rank} (pid {pid}) was killed by signal 9 (Killed) in step" in block.splitlines()[0]
    for other in set(range(processes)) - {rank}:
        assert f"rank {other} " not in block.splitlines()[0]
    if step > 20:
        assert re.search(r"newest checkpoint: .*/run/checkpoints/step-\d+\.safetensors", block)
        assert "--resume auto" in block
    else:
        assert re.search(r"no checkpoint was written\n  start again with: .*/run --resume auto$", block)


def test_report_page_and_summary_agree_on_the_time_of_a_restarted_run(tmp_path):
    with start(tmp_path, {"epochs": 3, "launch": {"max_restarts": 1}}, processes=2) as process:
        process.wait_for_step(45)
        send(process.wait_for_ranks(2)[1], signal.SIGKILL)
        assert process.wait() == 0, process.stderr
        folder = process.run_folder
    summary = folder.summary()
    assert summary["restarts"] == 1
    assert summary["startup_seconds"] + summary["train_seconds"] + summary["test_seconds"] < summary["wall_seconds"]
    page = (folder.path / "report.html").read_text()
    (whole,) = re.findall(r'Where did the time go\?</h2><p class="lead">([\d.]+) s, ', page)
    assert float(whole) == pytest.approx(summary["wall_seconds"], abs=0.06)


def test_the_number_of_restarts_is_limited(tmp_path):
    with start(tmp_path, merged(LONG_RUN, {"launch": {"max_restarts": 1}}), processes=2) as process:
        for _ in range(2):
            pid = process.wait_for_ranks(2)[1]
            send(pid, signal.SIGKILL)
            wait_until(lambda: pid not in process.alive(), "the end of the rank")
        assert process.wait() == 4
        assert process.stderr.count("restart 1 of 1") == 1
        only_failure_block(process)


@pytest.mark.clock
def test_workers_do_not_outlive_a_killed_launcher(tmp_path):
    for step in (0, 5):
        with start(tmp_path, LONG_RUN, processes=2, output=f"run{step}") as process:
            process.wait_for_ranks(2)
            process.wait_for_step(step)
            process.send(signal.SIGKILL)
            process.wait()
            assert_gone(process, within_s=2)


# Signals


@pytest.mark.clock
def test_ctrl_c_saves_and_exits_130(tmp_path):
    with start(tmp_path, LONG_RUN, processes=2) as process:
        process.wait_for_step(7)
        asked_at = time.monotonic()
        for pid in process.alive():  # to every process, as a terminal does
            send(pid, signal.SIGINT)
        assert process.wait() == 130, process.stderr
        assert time.monotonic() - asked_at < 5
        assert_gone(process, within_s=1)
        folder = process.run_folder
        assert "--resume auto" in process.stderr
        assert "mnist-train failed" not in process.stderr
    assert folder.summary()["status"] == "stopped"
    assert int(folder.checkpoints()[-1].stem[5:]) == folder.last_step()


@pytest.mark.clock
def test_sigterm_and_a_lost_rank_end_an_evaluation(tmp_path):
    model = train(tmp_path, {"max_steps": 1}).path / "model.pt"
    config = write_config(tmp_path, {"test_batch_size": 1, "data": {"limit_test": None}})
    command = [BINARY, "evaluate", "--checkpoint", model, "--config", config, "--nproc-per-node", 2]
    for number, code, message in ((signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGKILL, 4, "rank 1 (pid ")):
        with Process(command, tmp_path) as process:
            process.wait_for_phase(1, "evaluation")
            send(process.pid if number == signal.SIGTERM else process.ranks()[1], number)
            assert process.wait(5) == code, process.stderr
            assert_gone(process, within_s=1)
            assert process.stdout == "" and message in process.stderr, process.stderr


@pytest.mark.clock
@pytest.mark.parametrize("first", swept(["launcher", "ranks", "launcher alone"], ["launcher"]))
def test_a_job_that_was_suspended_causes_no_false_alarm(tmp_path, first):
    changes = merged(LONG_RUN, {"epochs": 3, "launch": {"hang_timeout_s": 2}})
    with start(tmp_path, changes, processes=2) as process:
        process.wait_for_step(5)
        ranks = list(process.ranks().values())
        order = {"launcher": [[process.pid], ranks], "ranks": [ranks, [process.pid]], "launcher alone": [[process.pid]]}[first]
        for number in (signal.SIGSTOP, signal.SIGCONT):  # a suspended machine, a frozen container, Ctrl-Z
            for pids in order:
                for pid in pids:
                    send(pid, number)
                time.sleep(0.3)
            time.sleep(2.2 if number == signal.SIGSTOP else 0)
        assert process.wait() == 0, process.stderr
        assert "restart" not in process.stderr


# Losses that are not finite


def test_a_loss_that_is_not_finite_ends_all_ranks_at_the_same_step(tmp_path):
    failed = train(tmp_path, {"learning_rate": 1e30, "epochs": 50, "launch": {"max_restarts": 2}}, processes=2, expect=1)
    assert "restart" not in failed.stderr  # the loss would be the same after a restart
    assert failed.summary()["status"] == "failed" and "loss became" in failed.summary()["error"]
    cause = only_failure_block(failed).splitlines()[0]
    step = re.search(r"rank \d .*the loss became (?:NaN|infinite) at step (\d+): lower learning_rate", cause).group(1)
    assert set(re.findall(r"at step (\d+)", failed.stderr)) == {step}
    assert not failed.checkpoints() and not (failed.path / "model.pt").exists()
    assert not [line for line in failed.steps() if line["step"] >= int(step)]
    assert "no checkpoint was written" in failed.stderr and "start again" not in failed.stderr  # it would diverge again


def test_a_network_that_diverges_in_its_last_step_fails_in_the_evaluation(tmp_path):
    failed = train(tmp_path, {"learning_rate": 1e30, "max_steps": 1, "sgd_momentum": 0, "test_batch_size": 50}, processes=2, expect=1)
    assert "the test loss is NaN after step 1" in failed.summary()["error"]
    assert "in the evaluation of epoch 1, batch 5:" in failed.stderr  # the last one
    assert not failed.checkpoints() and not (failed.path / "model.pt").exists()


# Disk


def test_a_full_disk_is_an_error_and_leaves_no_partial_file(tmp_path):
    with start(tmp_path, {"batch_size": 45}, processes=2) as process:
        process.wait_for_step(3)
        resource.prlimit(process.wait_for_ranks(2)[0], resource.RLIMIT_FSIZE, (1000000, 1000000))
        assert process.wait() == 5, process.stderr
        assert "File too large; raise the limit on file sizes (ulimit -f is 976.6 KiB)" in process.stderr
        assert "rank 0" in only_failure_block(process).splitlines()[0]
        assert_gone(process, within_s=2)
        folder = process.run_folder
    assert len(folder.epochs()) == 1
    assert not folder.checkpoints()
    assert not (folder.path / "model.pt").exists()
    assert folder.summary()["status"] == "failed"


# Ports


def test_nothing_listens_outside_loopback(tmp_path):
    with start(tmp_path, LONG_RUN | averaging("flat"), processes=2) as process:
        process.wait_for_step(2)
        sockets = process.listening()
    assert {address for address, _ in sockets} <= {"127.0.0.1"}, sockets
    assert len(sockets) >= 2  # a self-check of the test: Gloo listens in every rank


@pytest.mark.sweep
def test_many_concurrent_runs_do_not_interfere(tmp_path):
    with at_once(start(tmp_path, {"max_steps": 2, "data": {"limit_test": 10}}, processes=2, output=f"run{number}")
                 for number in range(16)) as runs:
        assert [process.wait() for process in runs] == [0] * 16
        assert len({process.run_folder.digest() for process in runs}) == 1
