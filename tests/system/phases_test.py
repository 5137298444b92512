"""Tests a lost process, a signal and a stopped process in each phase of a run."""

import signal
import time

import pytest
from support import LONG_RUN, MNIST, assert_gone, merged, send, start, swept, train, wait_until

# Two epochs of 20 steps, a checkpoint every 4 steps, and evaluations of a few dozen batches. Loading all of MNIST is slow.
CONFIG = {"batch_size": 45, "test_batch_size": 40, "data": {"root": str(MNIST.parent), "limit_train": 886, "limit_test": 2000},
          "checkpoint": {"every_steps": 4}, "launch": {"max_restarts": 2}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed"), CONFIG, processes=2)


def is_saving(folder):
    return any((folder.path / "checkpoints").glob("*.partial*"))


def wait_for_a_save(process):
    process.wait_for_phase(0, "training", 6)
    wait_until(lambda: is_saving(process.run_folder) or process.popen.poll() is not None, "a save", interval=0)


@pytest.mark.clock
@pytest.mark.parametrize("phase, step, rank", swept([
    ("rendezvous", 0, 0), ("data loading", 0, 1), ("training", 10, 1), ("evaluation", 0, 0), ("a save", 0, 0)],
    [("rendezvous", 0, 0), ("training", 10, 1), ("a save", 0, 0)]))
def test_a_rank_killed_in_any_phase_is_detected_at_once_and_the_run_ends_bit_identically(tmp_path, undisturbed, phase, step, rank):
    with start(tmp_path, CONFIG, processes=2) as process:
        pid = process.wait_for_ranks(2)[rank]
        if phase == "a save":
            wait_for_a_save(process)
        else:
            process.wait_for_phase(rank, phase, step)
        send(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        wait_until(lambda: "restart 1 of 2" in process.stderr or process.popen.poll() is not None, "the restart")
        assert time.monotonic() - killed_at < 2
        assert process.wait() == 0, process.stderr
        assert f"rank {rank} (pid {pid}) was killed by signal 9 (Killed)" in process.stderr
        folder = process.run_folder
    assert folder.digest() == undisturbed.digest()
    assert [step["step"] for step in folder.steps()] == list(range(1, 41))
    assert not list((folder.path / "checkpoints").glob("*.partial*"))


@pytest.mark.clock
@pytest.mark.parametrize("phase, step", swept(
    [("startup", 0), ("rendezvous", 0), ("data loading", 0), ("training", 7), ("evaluation", 0), ("a save", 0)],
    [("startup", 0), ("evaluation", 0), ("a save", 0)]))
def test_sigterm_in_any_phase_exits_143_and_the_run_resumes_bit_identically(tmp_path, undisturbed, phase, step):
    with start(tmp_path, CONFIG, processes=2) as process:
        if phase == "a save":
            wait_for_a_save(process)
        else:
            process.wait_for_phase(0, phase, step)
        process.stop(signal.SIGTERM, 143)
        assert_gone(process, within_s=1)
        assert "mnist-train failed" not in process.stderr
        folder = process.run_folder
    assert bool(folder.checkpoints()) == (phase in ("training", "evaluation", "a save"))
    assert train(tmp_path, CONFIG, "--resume", "auto", processes=2).digest() == undisturbed.digest()


@pytest.mark.clock
def test_a_rank_stopped_outside_of_training_is_reported_with_its_phase(tmp_path):
    changes = merged(CONFIG, {"launch": {"hang_timeout_s": 2, "max_restarts": 0}})
    with start(tmp_path, changes, processes=2) as process:
        pid = process.wait_for_ranks(2)[1]
        process.wait_for_phase(1, "evaluation")
        send(pid, signal.SIGSTOP)
        assert process.wait(9) == 4
        assert_gone(process, within_s=1)
        block = process.stderr[process.stderr.index("mnist-train failed"):]
    assert "rank 1 has been in the evaluation of epoch 1" in block and "it is stopped" in block
    assert "rank 0: waited in all-reduce of the evaluation of epoch 1" in block


def test_a_crash_loop_without_progress_ends_with_a_message(tmp_path):
    with start(tmp_path, merged(LONG_RUN, {"launch": {"max_restarts": 20}}), processes=2) as process:
        seen = set()
        while process.popen.poll() is None:  # every attempt dies before its first step
            for pid in set(process.ranks().values()) - seen:
                seen.add(pid)
                send(pid, signal.SIGKILL)
        assert process.wait() == 4
        assert_gone(process, within_s=2)
        assert process.stderr.count("restarting all processes") == 2
        assert "without progress" in process.stderr
