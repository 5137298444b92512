"""Processes that die, hang or get signals, data and files that are broken: bounded time, one cause, nothing left."""

import random
import re
import resource
import shutil
import signal
import struct
import time
from pathlib import Path

import pytest
from support import (BINARY, LONG_RUN, MNIST, Process, assert_gone, averaging, merged, run, send, start, swept,
                     train, write_config)

STEPS = 60
RESTARTING = {"epochs": 3, "batch_size": 45, "data": {"limit_train": 886}, "launch": {"max_restarts": 2},
              "checkpoint": {"every_steps": 7}}


def the_one_block(process):
    """The failure block: its first line names the cause."""
    blocks = re.findall(r"^mnist-train failed: .*(?:\n  .*)*", process.stderr, re.MULTILINE)
    assert len(blocks) == 1, process.stderr
    return blocks[0]


# A lost process


@pytest.mark.parametrize("processes, rank, step", swept([(2, 0, 12), (2, 1, 5), (3, 2, 25)], [(2, 0, 12), (3, 2, 25)]))
def test_a_killed_rank_ends_the_run_by_its_name(tmp_path, processes, rank, step):
    with start(tmp_path, LONG_RUN, processes=processes) as process:
        process.wait_for_step(step)
        pid = process.wait_for_ranks(processes)[rank]
        send(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        assert process.wait() == 4
        assert time.monotonic() - killed_at < 3
        assert_gone(process, within_s=2)
        block = the_one_block(process)
    assert f"rank {rank} (pid {pid}) was killed by signal 9 (Killed) in step" in block.splitlines()[0]
    for other in set(range(processes)) - {rank}:
        assert f"rank {other} " not in block.splitlines()[0]
    if step > 20:
        assert re.search(r"newest checkpoint: .*/run/checkpoints/step-\d+\.safetensors", block)
        assert "--resume auto" in block
    else:
        assert "no checkpoint was written" in block


def test_a_rank_killed_while_it_starts_ends_the_run(tmp_path):
    with start(tmp_path, LONG_RUN, processes=2) as process:
        send(process.wait_for_ranks(2)[1], signal.SIGKILL)
        assert process.wait() == 4
        assert_gone(process, within_s=2)
        assert "rank 1 (pid" in the_one_block(process).splitlines()[0]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def run_of(processes, strategy):
        if (processes, strategy) not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[processes, strategy] = train(folder, RESTARTING | averaging(strategy), processes=processes)
        return known[processes, strategy]

    return run_of


@pytest.mark.parametrize("seed, processes, strategy", swept([
    (1, 2, "flat"), (2, 2, "bucketed"), (3, 3, "flat"), (4, 2, "shared_memory"), (5, 3, "shared_memory")],
    [(2, 2, "bucketed"), (5, 3, "shared_memory")]))
def test_a_run_that_loses_a_rank_at_any_moment_starts_again_and_ends_with_the_same_bits(
        tmp_path, undisturbed, seed, processes, strategy):
    draw = random.Random(seed)
    with start(tmp_path, RESTARTING | averaging(strategy), processes=processes) as process:
        for step in (draw.randrange(1, 20), draw.randrange(20, 40)):
            process.wait_for_step(step)
            time.sleep(draw.uniform(0, 0.01))
            rank = draw.randrange(processes)
            pid = process.wait_for_ranks(processes)[rank]
            send(pid, signal.SIGKILL)
            assert pid not in process.alive() or wait_gone(process, pid)
        assert process.wait() == 0, process.stderr
        assert process.stderr.count("was killed by signal 9") == 2
        assert "restart 2 of 2" in process.stderr
        assert "mnist-train failed" not in process.stderr
        folder = process.run_folder
    assert folder.summary()["restarts"] == 2
    assert [step["step"] for step in folder.steps()] == list(range(1, STEPS + 1))
    assert folder.digest() == undisturbed(processes, strategy).digest()


def wait_gone(process, pid, timeout=5):
    deadline = time.monotonic() + timeout
    while pid in process.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return True


def test_page_and_summary_agree_on_the_time_of_a_run_that_lost_an_attempt(tmp_path):
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


def test_restarts_come_to_an_end(tmp_path):
    with start(tmp_path, merged(LONG_RUN, {"launch": {"max_restarts": 1}}), processes=2) as process:
        for _ in range(2):
            pid = process.wait_for_ranks(2)[1]
            send(pid, signal.SIGKILL)
            wait_gone(process, pid)
        assert process.wait() == 4
        assert process.stderr.count("restart 1 of 1") == 1
        the_one_block(process)


def test_workers_do_not_outlive_a_killed_launcher(tmp_path):
    for step in (0, 5):
        with start(tmp_path, LONG_RUN, processes=2, output=f"run{step}") as process:
            process.wait_for_ranks(2)
            process.wait_for_step(step)
            process.send(signal.SIGKILL)
            process.wait()
            assert_gone(process, within_s=2)


# Signals


def test_ctrl_c_saves_and_leaves_with_130(tmp_path):
    with start(tmp_path, LONG_RUN, processes=2) as process:
        process.wait_for_step(7)
        asked_at = time.monotonic()
        for pid in process.alive():  # as a terminal does: to every process
            send(pid, signal.SIGINT)
        assert process.wait() == 130, process.stderr
        assert time.monotonic() - asked_at < 5
        assert_gone(process, within_s=1)
        folder = process.run_folder
        assert "--resume auto" in process.stderr
        assert "mnist-train failed" not in process.stderr
    assert folder.summary()["status"] == "stopped"
    assert int(folder.checkpoints()[-1].stem[5:]) == folder.last_step()


def test_a_second_ctrl_c_leaves_at_once(tmp_path):
    with start(tmp_path, LONG_RUN, processes=2) as process:
        process.wait_for_step(3)
        send(process.ranks()[1], signal.SIGSTOP)  # so that the first one has to wait
        process.send(signal.SIGINT)
        time.sleep(0.5)
        assert process.popen.poll() is None
        process.send(signal.SIGINT)
        asked_at = time.monotonic()
        assert process.wait() == 130
        assert time.monotonic() - asked_at < 1
        assert_gone(process, within_s=1)


def test_sigterm_while_the_ranks_start_leaves_soon(tmp_path):
    with start(tmp_path, LONG_RUN, processes=2) as process:
        process.wait_for_ranks(2)
        process.send(signal.SIGTERM)
        assert process.wait(10) == 143, process.stderr
        assert_gone(process, within_s=1)
        assert "mnist-train failed" not in process.stderr


def test_sigterm_ends_an_evaluation(tmp_path):
    model = train(tmp_path, {"max_steps": 1}).path / "model.pt"
    config = write_config(tmp_path, {"test_batch_size": 1, "data": {"limit_test": None}})
    command = [BINARY, "evaluate", "--checkpoint", model, "--config", config, "--nproc-per-node", 2]
    with Process(command, tmp_path) as process:
        process.wait_for_ranks(2)
        process.send(signal.SIGTERM)
        assert process.wait(5) == 143
        assert_gone(process, within_s=1)
        assert process.stdout == ""


@pytest.mark.parametrize("processes, rank", swept([(2, 0), (2, 1), (3, 1)], [(2, 0)]))
def test_a_rank_that_hangs_is_named(tmp_path, processes, rank):
    changes = merged(LONG_RUN, {"launch": {"hang_timeout_s": 3}})
    with start(tmp_path, changes, processes=processes) as process:
        process.wait_for_step(4)
        send(process.wait_for_ranks(processes)[rank], signal.SIGSTOP)
        stopped_at = time.monotonic()
        assert process.wait() == 4
        assert 2 < time.monotonic() - stopped_at < 8
        assert_gone(process, within_s=2)
        cause = the_one_block(process).splitlines()[0]
    assert re.search(rf"rank {rank} has been in (gradient averaging of )?step \d+", cause), cause
    assert "hang_timeout_s" in cause


@pytest.mark.parametrize("first", ["launcher", "ranks"])
@pytest.mark.parametrize("strategy", swept(["shared_memory", "flat"], ["shared_memory"]))
def test_a_job_that_was_stopped_for_a_while_raises_no_alarm(tmp_path, strategy, first):
    changes = merged(LONG_RUN, {"epochs": 3, "launch": {"hang_timeout_s": 4}, "gradient_averaging": {"strategy": strategy}})
    with start(tmp_path, changes, processes=2) as process:
        process.wait_for_step(5)
        ranks = list(process.ranks().values())
        order = [[process.pid], ranks] if first == "launcher" else [ranks, [process.pid]]
        for number in (signal.SIGSTOP, signal.SIGCONT):  # a suspended machine, a frozen container, Ctrl-Z
            for pids in order:
                for pid in pids:
                    send(pid, number)
                time.sleep(0.3)
            time.sleep(4.1 if number == signal.SIGSTOP else 0)
        assert process.wait() == 0, process.stderr
        assert "restart" not in process.stderr


# Numbers and weights


def test_a_loss_that_is_no_number_ends_all_ranks_at_the_same_step(tmp_path):
    failed = train(tmp_path, {"learning_rate": 1e30, "epochs": 50}, processes=2, expect=1)
    cause = the_one_block(failed).splitlines()[0]
    step = re.search(r"rank \d .*the loss became (?:NaN|infinite) at step (\d+): lower learning_rate", cause).group(1)
    assert set(re.findall(r"at step (\d+)", failed.stderr)) == {step}
    assert not failed.checkpoints() and not (failed.path / "model.pt").exists()
    assert not [line for line in failed.steps() if line["step"] >= int(step)]


def test_a_crash_that_would_repeat_is_not_tried_again(tmp_path):
    changes = {"learning_rate": 1e30, "epochs": 50, "launch": {"max_restarts": 2}}
    failed = train(tmp_path, changes, processes=2, expect=1)
    assert "restart" not in failed.stderr


# Data


@pytest.fixture
def data(tmp_path):
    """A folder of MNIST's own files to break."""
    for path in MNIST.glob("*.gz"):
        shutil.copy(path, tmp_path)
    return tmp_path


def from_folder(folder):
    limits = {"dataset": None, "limit_train": None, "limit_test": None}
    return {"max_steps": 1, "data": limits | {"format": "idx", "train": str(folder), "test": str(folder)}}


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def remove(path):
    path.unlink()


def make_folder(path):
    path.unlink()
    path.mkdir()


def claim_many_images(path):
    path.unlink()
    path.with_suffix("").write_bytes(struct.pack(">IIII", 0x803, 0xFFFFFFFF, 28, 28) + bytes(784))


def swap_magic(path):
    path.unlink()
    path.with_suffix("").write_bytes(struct.pack(">II", 0x804, 3) + bytes(3))


@pytest.mark.parametrize("damage, name", [
    (cut_in_half, "train-images-idx3-ubyte.gz"), (cut_in_half, "t10k-labels-idx1-ubyte.gz"),
    (remove, "train-labels-idx1-ubyte.gz"), (make_folder, "t10k-images-idx3-ubyte.gz"),
    (claim_many_images, "train-images-idx3-ubyte.gz"), (swap_magic, "train-labels-idx1-ubyte.gz"),
], ids=lambda value: getattr(value, "__name__", value))
def test_broken_data_ends_the_run_with_3_and_the_file(data, damage, name):
    damage(data / name)
    with start(data, from_folder(data), processes=2) as process:
        assert process.wait() == 3, process.stderr
        assert_gone(process, within_s=1)
        assert name.removesuffix(".gz") in process.stderr
        assert str(data) in process.stderr


def test_unbroken_data_from_a_folder_trains(data):
    train(data, from_folder(data), processes=2)


def test_data_that_is_not_there_ends_the_run_with_3_and_the_folder(tmp_path):
    failed = train(tmp_path, from_folder(tmp_path / "nowhere"), processes=2, expect=3)
    assert str(tmp_path / "nowhere") in failed.stderr


# Places and means


def test_an_output_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    begin = time.monotonic()
    for output in ("/proc/mnist-train-run", tmp_path / "file" / "run", tmp_path / "file"):
        result = run("--config", write_config(tmp_path), "--output", output, "--nproc-per-node", 2)
        assert result.returncode == 2, result.stderr
        assert str(output) in result.stderr
    assert time.monotonic() - begin < 5


def test_a_disk_that_fills_up_never_ends_well_and_leaves_no_half_file(tmp_path):
    with start(tmp_path, {"batch_size": 45}, processes=2) as process:
        process.wait_for_step(3)
        resource.prlimit(process.wait_for_ranks(2)[0], resource.RLIMIT_FSIZE, (1000000, 1000000))
        assert process.wait() == 5, process.stderr
        assert "File too large; raise the limit on file sizes (ulimit -f is 976.6 KiB)" in process.stderr
        assert "rank 0" in the_one_block(process).splitlines()[0]
        assert_gone(process, within_s=2)
        folder = process.run_folder
    assert len(folder.epochs()) == 1
    assert not folder.checkpoints()
    assert not (folder.path / "model.pt").exists()
    assert folder.summary()["status"] == "failed"


@pytest.mark.skipif(any(Path("/proc/driver").glob("nvidia/version")), reason="there is a GPU")
def test_a_gpu_asked_for_by_name_is_not_replaced(tmp_path):
    for asked in ({"backend": "nccl", "device": "auto"}, {"device": "cuda"}):
        refused = train(tmp_path, asked, processes=2, expect=2)
        assert list(asked.values())[0] in refused.stderr and "no GPU" in refused.stderr
        assert not refused.path.exists()


def test_processes_are_refused_where_they_contradict_the_devices(tmp_path):
    refused = train(tmp_path, {"launch": {"devices": ["cpu", "cpu", "cpu"]}}, processes=2, expect=2)
    assert "devices" in refused.stderr


# Ports


@pytest.mark.parametrize("processes, strategy", swept([(1, "auto"), (2, "flat"), (3, "auto")], [(2, "flat")]))
def test_nothing_listens_outside_loopback(tmp_path, processes, strategy):
    with start(tmp_path, LONG_RUN | averaging(strategy), processes=processes) as process:
        process.wait_for_ranks(processes)
        process.wait_for_step(2)
        sockets = process.listening()
    assert {address for address, _ in sockets} <= {"127.0.0.1"}, sockets
    assert len(sockets) >= (processes if processes > 1 else 0)  # the look itself works: Gloo listens in every rank


@pytest.mark.sweep
def test_many_runs_started_at_once_do_not_meet(tmp_path):
    runs = [start(tmp_path, {"max_steps": 2, "data": {"limit_test": 10}}, processes=2, output=f"run{number}")
            for number in range(16)]
    try:
        assert [process.wait() for process in runs] == [0] * 16
        assert len({process.run_folder.digest() for process in runs}) == 1
    finally:
        for process in runs:
            process.__exit__()
