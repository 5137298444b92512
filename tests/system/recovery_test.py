"""After a process is lost, all processes restart quickly from a snapshot in memory and end with bit-identical weights."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from support import assert_gone, averaging, environment_of, merged, send, start, swept, title_of, train, wait_until

STEPS = 200  # five epochs of 40 steps
# Only one checkpoint, at the end: without snapshots in memory, all steps would be repeated.
CONFIG = {"epochs": 5, "batch_size": 64, "data": {"limit_train": 2560, "limit_test": 500},
          "checkpoint": {"every_epochs": 5, "keep_best": False}, "launch": {"max_restarts": 20}}
ROOMY_S = 5  # generous: a restart takes a tenth of a second on an idle machine


def parent(pid):
    return int(re.search(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE).group(1))


def resumed_steps(process):
    return [int(step) for step in re.findall(r"resuming from memory: epoch \d+, step (\d+)", process.stderr)]


def test_ranks_are_children_of_the_launcher_with_descriptive_titles(tmp_path):
    with start(tmp_path, CONFIG | {"epochs": 1000}, processes=3) as process:
        process.wait_for_step(2)
        ranks = process.wait_for_ranks(3)
        assert [title_of(ranks[rank]) for rank in range(3)] == [f"mnist-train: rank {rank}" for rank in range(3)]
        assert {parent(pid) for pid in ranks.values()} == {process.pid}
        variables = environment_of(ranks[2])
        assert variables["RANK"] == "2" and variables["WORLD_SIZE"] == "3" and variables["MASTER_ADDR"] == "127.0.0.1"
        assert process.fork_server()
        process.send(signal.SIGTERM)
        assert process.wait() == 143
        assert_gone(process, within_s=1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed"), CONFIG, processes=2)


@pytest.mark.clock
@pytest.mark.parametrize("processes, strategy", swept([(2, "flat"), (3, "bucketed"), (3, "shared_memory")], [(3, "shared_memory")]))
def test_a_run_that_loses_ranks_repeatedly_resumes_bit_identically_from_memory(tmp_path, processes, strategy):
    config = CONFIG | averaging(strategy)
    expected = train(tmp_path, config, processes=processes, output="undisturbed")
    draw = random.Random(processes)
    kills = []
    with start(tmp_path, config, processes=processes) as process:
        for step in (15, 50, 90):
            process.wait_for_step(step)
            time.sleep(draw.uniform(0, 0.05))
            rank = draw.randrange(processes)
            begun = max(status.step for status in process.board())
            send(process.wait_for_ranks(processes)[rank], signal.SIGKILL)
            kills.append((begun, time.monotonic()))
            count = len(kills)
            wait_until(lambda: len(resumed_steps(process)) == count or process.popen.poll() is not None, "the restart")
            assert time.monotonic() - kills[-1][1] < ROOMY_S
        assert process.wait() == 0, process.stderr
        assert_gone(process, within_s=1)
        resumed = resumed_steps(process)
        folder = process.run_folder
    assert "resuming from /" not in process.stderr and "from scratch" not in process.stderr
    for (begun, _), step in zip(kills, resumed):
        assert step > begun - 40, f"{begun - step} steps were lost"  # a step takes a few milliseconds
    assert folder.digest() == expected.digest()
    assert [step["step"] for step in folder.steps()] == list(range(1, STEPS + 1))
    assert folder.summary()["restarts"] == 3
    assert re.findall(r"attempt (\d)", (folder.path / "logs/rank-0.log").read_text()) == ["1", "2", "3", "4"]
    assert folder.read_json("accuracies.json") == expected.read_json("accuracies.json")


def test_a_run_survives_its_fork_server_and_starts_another_when_needed(tmp_path, undisturbed):
    with start(tmp_path, CONFIG, processes=2) as process:
        process.wait_for_step(10)
        first = process.fork_server()
        ranks = process.ranks()
        send(first, signal.SIGKILL)
        process.wait_for_step(40)
        assert process.ranks() == ranks, "no rank was lost with the server"
        send(ranks[0], signal.SIGKILL)
        assert process.wait() == 0, process.stderr
        assert len(resumed_steps(process)) == 1, process.stderr
    assert process.run_folder.digest() == undisturbed.digest()


def test_a_fork_server_killed_before_it_forks_ranks_is_replaced(tmp_path, undisturbed):
    with start(tmp_path, CONFIG, processes=2) as process:
        wait_until(process.fork_server, "the server", interval=0)
        assert not process.ranks()
        send(process.fork_server(), signal.SIGKILL)
        assert process.wait() == 0, process.stderr
        assert "restarting" not in process.stderr or "could not be started" in process.stderr  # the server had already been asked for ranks
        assert "restart 2 of 20" not in process.stderr
    assert process.run_folder.digest() == undisturbed.digest()


def test_a_checkpoint_interrupted_by_a_kill_is_written_by_the_next_attempt(tmp_path):
    """Each time, rank 0 is killed during the first write of the checkpoint."""
    config = merged(CONFIG, {"checkpoint": {"every_steps": 10, "keep": 100, "every_epochs": 1, "keep_best": True}})
    (tmp_path / "undisturbed").mkdir()
    expected = train(tmp_path / "undisturbed", config, processes=2)
    with start(tmp_path, config, processes=2) as process:
        for step in (10, 40, 70):
            process.wait_for_step(step - 5)
            folder = process.run_folder.path / "checkpoints"
            wait_until(lambda: any(folder.glob(f"step-{step:08}*partial*")) or process.popen.poll() is not None
                       or (folder / f"step-{step:08}.safetensors").exists(), "a save", interval=0)
            send(process.wait_for_ranks(2)[0], signal.SIGKILL)
            seen = len(resumed_steps(process))
            wait_until(lambda: len(resumed_steps(process)) > seen or process.popen.poll() is not None, "the restart")
        assert process.wait() == 0, process.stderr
    names = [path.name for path in expected.checkpoints()]
    assert len(names) == STEPS // 10
    assert [path.name for path in process.run_folder.checkpoints()] == names
    best = process.run_folder.path / "checkpoints/best.safetensors"
    assert os.path.samefile(best, next(path for path in process.run_folder.checkpoints() if os.path.samefile(path, best)))
    assert process.run_folder.digest() == expected.digest()


def test_a_run_that_gives_up_saves_its_newest_snapshot_as_a_checkpoint(tmp_path, undisturbed):
    config = merged(CONFIG, {"launch": {"max_restarts": 1}})
    with start(tmp_path, config, processes=2) as process:
        process.wait_for_step(40)
        send(process.wait_for_ranks(2)[1], signal.SIGKILL)
        wait_until(lambda: resumed_steps(process) or process.popen.poll() is not None, "the restart")
        process.wait_for_step(100)
        pid = process.wait_for_ranks(2)[0]
        send(pid, signal.SIGKILL)
        assert process.wait() == 4, process.stderr
        assert_gone(process, within_s=1)
    (saved,) = re.findall(r"^    saved step (\d+) from memory as a checkpoint$", process.stderr, re.MULTILINE)
    assert int(saved) >= resumed_steps(process)[0] > 0
    (checkpoint,) = process.run_folder.checkpoints()
    assert checkpoint.name == f"step-{int(saved):08}.safetensors"
    assert f"mnist-train failed: rank 0 (pid {pid}) was killed by signal 9" in process.stderr
    assert f"newest checkpoint: {checkpoint}\n" in process.stderr
    assert process.run_folder.summary()["status"] == "failed"
    done = train(tmp_path, config, "--resume", "auto", processes=2)
    assert f"resuming from {checkpoint}: epoch " in done.stderr
    assert done.digest() == undisturbed.digest()
    assert [step["step"] for step in done.steps()] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("delay_s", [0, 0.02])
def test_a_run_stopped_while_it_has_lost_a_rank_saves_its_newest_snapshot(tmp_path, delay_s):
    with start(tmp_path, CONFIG | {"epochs": 1000}, processes=2) as process:
        process.wait_for_step(40)
        send(process.wait_for_ranks(2)[0], signal.SIGKILL)
        time.sleep(delay_s)
        process.send(signal.SIGTERM)
        assert process.wait() in (4, 143), process.stderr
        assert_gone(process, within_s=1)
    assert "nothing was saved" not in process.stderr
    assert re.search(r"saved step \d+ from memory as a checkpoint|stopped and saved", process.stderr), process.stderr
    assert process.run_folder.checkpoints() and process.run_folder.summary()["status"] in ("failed", "stopped")


def test_without_restarts_no_snapshots_are_kept(tmp_path):
    with start(tmp_path, CONFIG | {"epochs": 1000, "launch": {"max_restarts": 0}}, processes=2) as process:
        process.wait_for_step(5)
        held = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").glob("*")]
        assert any("mnist-train-status" in name for name in held)
        assert not any("mnist-train-snapshots" in name for name in held)
