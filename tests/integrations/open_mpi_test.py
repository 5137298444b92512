"""Real mpirun (Debian's openmpi-bin) on this machine."""

import shutil
import signal
import time

import pytest
from support import BINARY, Process, assert_gone, executable_of, send, train, write_config

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun: scripts/test --integrations installs it")

CONFIG = {"batch_size": 45, "data": {"limit_train": 886}}
LONG_RUN = {"epochs": 1000, "data": {"limit_test": 100}}


def mpirun(folder, changes, processes=2):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", processes, BINARY, "--config",
               write_config(folder, changes), "--output", folder / "run"]
    return Process(command, folder, folder / "run")


@pytest.mark.parametrize("processes", [2, 3])
def test_mpirun_gives_the_weights_of_our_own_launcher(tmp_path, processes):
    own = tmp_path / "own"
    own.mkdir()
    expected = train(own, CONFIG, processes=processes)
    with mpirun(tmp_path, CONFIG, processes) as process:
        assert process.wait() == 0, process.stderr
        folder = process.run_folder
    assert folder.digest() == expected.digest()
    assert folder.summary()["launcher"] == "open-mpi"
    assert folder.summary()["world_size"] == processes


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_shards_give_the_same_bits_under_mpirun(tmp_path, processes):
    own = tmp_path / "own"
    own.mkdir()
    changes = CONFIG | {"deterministic": {"shards": 4}}
    expected = train(own, changes, processes=2)
    with mpirun(tmp_path, changes, processes) as process:
        assert process.wait() == 0, process.stderr
    assert process.run_folder.summary()["world_size"] == processes
    assert process.run_folder.digest() == expected.digest()


def test_a_killed_rank_ends_mpirun_and_leaves_nothing(tmp_path):
    with mpirun(tmp_path, LONG_RUN) as process:
        process.wait_for_step(3)
        ranks = [pid for pid in process.alive() if "mnist-train-worker" in executable_of(pid)]
        send(ranks[-1], signal.SIGKILL)
        begin = time.monotonic()
        assert process.wait() != 0
        assert time.monotonic() - begin < 20
        assert_gone(process, within_s=5)


@pytest.mark.parametrize("named, launcher, world_size", [("auto", "open-mpi", 1), (2, "mnist-train", 2)])
def test_one_process_under_mpirun_is_one_unless_it_is_told_to_start_more(tmp_path, named, launcher, world_size):
    changes = {**CONFIG, "max_steps": 2, "launch": {"processes_per_node": named}}
    with mpirun(tmp_path, changes, 1) as process:
        assert process.wait() == 0, process.stderr
        summary = process.run_folder.summary()
    assert (summary["launcher"], summary["world_size"]) == (launcher, world_size)
