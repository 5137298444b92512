"""Tests the host side of runs on mock GPUs: start, NCCL communication, failures and exit."""

import signal

import pytest
from fake_gpus import ON_GPU, TINY, fake_gpus, needs_fake_gpus
from support import LONG_RUN, assert_gone, merged, start, train

pytestmark = needs_fake_gpus

STEPS = 20  # per epoch of ON_GPU
ONE_EPOCH = ON_GPU | {"epochs": 1}
ENDLESS = merged(ON_GPU, LONG_RUN)
SLOW = {"kernel_us": 20}  # leaves time to disturb a run


def test_out_of_memory_is_reported_with_the_settings_to_lower(tmp_path):
    changes = ONE_EPOCH | {"model": {"name": "resnet18"}, "batch_size": 128, "data": {"limit_train": 512, "limit_test": 100}}
    failed = train(tmp_path, changes, processes=2, variables=fake_gpus(2, limit_mb=300), expect=1)
    assert "out of memory: lower batch_size" in failed.stderr, failed.stderr
    assert "frame #" not in failed.stderr
    assert not failed.checkpoints()


@pytest.mark.parametrize("nan_from, said", [(0, "the loss became NaN at step"), (3, "the loss is finite, but the weight update is not")])
def test_a_loss_or_update_that_is_not_finite_ends_the_run_without_a_checkpoint(tmp_path, nan_from, said):
    variables = fake_gpus(2, nan_after_reads=5, nan_from=nan_from)
    failed = train(tmp_path, ONE_EPOCH, processes=2, variables=variables, expect=1)
    assert said in failed.stderr, failed.stderr
    assert failed.summary()["status"] == "failed"
    assert not failed.checkpoints() and not (failed.path / "model.pt").exists()


def test_sigterm_saves_and_the_run_resumes(tmp_path):
    steps = 160  # per epoch
    changes = merged(ENDLESS, TINY | {"batch_size": 8, "data": {"limit_train": 8 * steps}})
    with start(tmp_path, changes, processes=2, variables=fake_gpus(2, **SLOW)) as process:
        process.wait_for_step(10)
        process.stop(signal.SIGTERM, 143)
    stopped = process.run_folder.summary()
    assert stopped["status"] == "stopped" and 10 <= stopped["steps"] < steps
    resumed = train(tmp_path, changes | {"epochs": 1}, "--resume", "auto", processes=2, variables=fake_gpus(2))
    assert f"epoch 1, step {stopped['steps']}" in resumed.stderr, resumed.stderr
    assert resumed.summary()["steps"] == steps
    assert [step["step"] for step in resumed.steps()] == list(range(1, steps + 1))


def test_sigterm_stops_a_run_with_epochs_shorter_than_the_polling_interval(tmp_path):
    changes = merged(ENDLESS, TINY)
    with start(tmp_path, changes, processes=2, variables=fake_gpus(2)) as process:
        process.wait_for_step(10 * STEPS)  # by now a polling interval is longer than an epoch
        process.stop(signal.SIGTERM, 143)
    stopped = process.run_folder.summary()
    assert stopped["status"] == "stopped"
    resumed = train(tmp_path, changes | {"max_steps": stopped["steps"] + 5}, "--resume", "auto", processes=2, variables=fake_gpus(2))
    assert [step["step"] for step in resumed.steps()] == list(range(1, stopped["steps"] + 6))


def test_a_stop_request_that_is_seen_after_the_last_step_still_evaluates(tmp_path):
    changes = merged(ENDLESS, TINY | {"max_steps": 14})  # the host polls after steps 1, 3, 7 and 15
    with start(tmp_path, changes, processes=1, variables=fake_gpus(kernel_us=500)) as process:
        process.wait_for_step(9)
        process.send(signal.SIGTERM)
        code = process.wait()
        assert code in (0, 143), process.stderr  # on a slow machine, the host polls earlier
    run = process.run_folder if code == 0 else train(tmp_path, changes, "--resume", "auto", variables=fake_gpus())
    assert run.summary()["status"] == "finished" and len(run.epochs()) == 1


def test_a_run_whose_device_hangs_ends_in_time(tmp_path):
    changes = merged(ON_GPU, {"epochs": 1000, "launch": {"hang_timeout_s": 5}})
    with start(tmp_path, changes, processes=2, variables=fake_gpus(2, hang_after_launches=1000, hang_device=1)) as process:
        assert process.wait(60) == 4, process.stderr
        assert "waiting for its GPU" in process.stderr and "without progress" in process.stderr
        assert_gone(process, 2)
