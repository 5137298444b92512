"""Tests lost, stopped and failing ranks on mock GPUs, under our launcher and under other launchers, which do not monitor ranks."""

import os
import re
import signal
import time

import pytest
from fake_gpus import ON_GPU, fake_gpus, needs_fake_gpus
from support import LONG_RUN, assert_gone, free_port, merged, require_torchrun, send, start, swept, torchrun, worker, workers

pytestmark = needs_fake_gpus

HANG_TIMEOUT_S = 2
ENDLESS = merged(ON_GPU, LONG_RUN | {"launch": {"hang_timeout_s": HANG_TIMEOUT_S, "max_restarts": 0}})
WAYS = {  # ways to run a step
    "captured": {"cuda_graphs": "on"},
    "eager": {"cuda_graphs": "off"},
    "bucketed": {"gradient_averaging": {"strategy": "bucketed"}},
}


def ranks_by_hand(folder, changes, **settings):
    """Starts two ranks the way other launchers do: as independent, unsupervised processes."""
    return workers(folder, changes, variables=fake_gpus(2, **settings))


@pytest.mark.clock
@pytest.mark.parametrize("way, number", swept(
    [("captured", signal.SIGKILL), ("eager", signal.SIGSTOP), ("bucketed", signal.SIGKILL)], [("captured", signal.SIGKILL)]))
def test_without_our_launcher_a_rank_that_loses_its_peer_exits_in_time_and_reports_the_cause(tmp_path, way, number):
    with ranks_by_hand(tmp_path, merged(ENDLESS, WAYS[way])) as (first, second):
        first.wait_for_step(10)
        lost_s = time.monotonic()
        send(second.pid, number)
        assert first.wait() == 4, first.stderr
        assert time.monotonic() - lost_s < HANG_TIMEOUT_S + 5
        assert "mnist-train failed: rank 0" in first.stderr, first.stderr
        assert "in step" in first.stderr or "in the evaluation" in first.stderr, first.stderr  # either is possible
        assert "timed out" in first.stderr and "rank 1 did not respond" in first.stderr, first.stderr


# Without our launcher, no status board shows the phase, so tests wait for the last step before a long evaluation.
EVALUATION = (20, {"test_batch_size": 10, "data": {"limit_test": 500}})  # the last step before the evaluation, config changes


@pytest.mark.clock
@pytest.mark.sweep
def test_without_our_launcher_a_rank_exits_in_time_if_its_peer_is_killed_in_the_evaluation(tmp_path):
    step, changes = EVALUATION
    with ranks_by_hand(tmp_path, merged(ENDLESS, changes), kernel_us=300) as (first, second):
        first.wait_for_step(step)
        lost_s = time.monotonic()
        send(second.pid, signal.SIGKILL)
        assert first.wait() == 4, first.stderr
        assert time.monotonic() - lost_s < HANG_TIMEOUT_S + 5
        assert "rank 1 did not respond" in first.stderr, first.stderr


def test_without_our_launcher_a_rank_exits_in_time_if_its_peer_never_joins(tmp_path):
    changes = merged(ENDLESS, {"launch": {"rendezvous_timeout_s": 2}})
    with worker(tmp_path, 0, free_port(), changes, variables=fake_gpus(2)) as alone:
        assert alone.wait(20) == 4, alone.stderr
        assert "1 of 2 ranks joined" in alone.stderr and "missing: rank 1" in alone.stderr, alone.stderr


def test_without_our_launcher_a_rank_exits_in_time_if_its_device_hangs(tmp_path):
    with ranks_by_hand(tmp_path, ENDLESS, hang_after_launches=500, hang_device=1) as (first, second):
        begin_s = time.monotonic()
        assert (first.wait(), second.wait()) == (4, 4), first.stderr + second.stderr
        assert time.monotonic() - begin_s < 30
        for process in (first, second):
            assert re.search("waiting for the GPU timed out|no progress for|did not respond|wait timeout after", process.stderr), process.stderr


@pytest.mark.sweep
def test_torchrun_exits_if_a_rank_is_killed(tmp_path):
    require_torchrun()
    step, changes = EVALUATION
    with torchrun(tmp_path, merged(ENDLESS, changes), "--standalone", variables=fake_gpus(2, kernel_us=300)) as process:
        process.wait_for_step(step)
        send(process.wait_for_ranks(2)[1], signal.SIGKILL)
        assert process.wait() != 0
        assert_gone(process, within_s=2)


@pytest.mark.parametrize("phase", swept(["rendezvous", "evaluation"], ["evaluation"]))
def test_a_rank_killed_in_any_phase_is_detected_at_once_and_the_run_finishes(tmp_path, phase):
    changes = merged(ON_GPU, {"epochs": 3, "test_batch_size": 10, "data": {"limit_test": 500}, "checkpoint": {"every_steps": 2},
                              "launch": {"max_restarts": 1}})
    with start(tmp_path, changes, processes=2, variables=fake_gpus(2)) as process:
        pid = process.wait_for_ranks(2)[0]
        process.wait_for_phase(0, phase)
        send(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        assert process.wait() == 0, process.stderr
        assert "restart 1 of 1" in process.stderr and time.monotonic() - killed_s < 30
    assert "resuming from memory" in process.stderr or phase != "evaluation", process.stderr
    assert process.run_folder.summary()["steps"] == 60
    assert not [name for name in os.listdir("/dev/shm") if "fake" in name]


@pytest.mark.clock
@pytest.mark.parametrize("phase", swept(["training", "evaluation"], ["training"]))
def test_our_launcher_reports_a_stopped_rank(tmp_path, phase):
    changes = merged(ENDLESS, {"test_batch_size": 10, "checkpoint": {"every_steps": 2}})
    with start(tmp_path, changes, processes=2, variables=fake_gpus(2)) as process:
        pid = process.wait_for_ranks(2)[1]
        process.wait_for_phase(1, phase, 10 if phase == "training" else 0)
        send(pid, signal.SIGSTOP)
        assert process.wait(HANG_TIMEOUT_S + 10) == 4
        assert_gone(process, within_s=2)
        block = process.stderr[process.stderr.index("mnist-train failed"):]
        assert "rank 1" in block and "it is stopped" in block, block
