"""Tests the real mpirun of Open MPI and MPICH (Debian's openmpi-bin and mpich) on this machine."""

import shutil
import signal
import time

import pytest
from support import BINARY, LONG_RUN, Process, assert_gone, executable_of, send, train, write_config

COMMANDS = {"open-mpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"], "mpich": ["mpiexec.mpich"]}
CONFIG = {"batch_size": 45, "data": {"limit_train": 886}}


@pytest.fixture(params=COMMANDS)
def engine(request):
    if shutil.which(COMMANDS[request.param][0]) is None:
        pytest.skip(f"{COMMANDS[request.param][0]} is not installed; scripts/test --integrations installs it")
    return request.param


def mpirun(engine, folder, changes, processes=2, before=()):
    command = [*COMMANDS[engine], "-n", processes, *before, BINARY, "--config", write_config(folder, changes), "--output", folder / "run"]
    return Process(command, folder, folder / "run")


@pytest.mark.parametrize("processes", [2, 3])
def test_mpirun_gives_the_same_weights_as_our_launcher(engine, tmp_path, processes):
    expected = train(tmp_path, CONFIG, processes=processes, output="own")
    with mpirun(engine, tmp_path, CONFIG, processes) as process:
        assert process.wait() == 0, process.stderr
        folder = process.run_folder
    assert folder.digest() == expected.digest()
    assert folder.summary()["launcher"] == engine
    assert folder.summary()["world_size"] == processes


def test_a_script_may_wrap_the_program_under_mpirun(engine, tmp_path):
    with mpirun(engine, tmp_path, CONFIG | {"max_steps": 2}, before=["sh", "-c", '"$0" "$@"; exit $?']) as process:
        assert process.wait() == 0, process.stderr
        assert process.run_folder.summary()["world_size"] == 2


@pytest.mark.clock
def test_a_killed_rank_ends_mpirun_and_leaves_no_process(engine, tmp_path):
    with mpirun(engine, tmp_path, LONG_RUN) as process:
        process.wait_for_step(3)
        ranks = [pid for pid in process.alive() if "mnist-train-worker" in executable_of(pid)]
        send(ranks[-1], signal.SIGKILL)
        begin = time.monotonic()
        assert process.wait() != 0
        assert time.monotonic() - begin < 20
        assert_gone(process, within_s=5)


@pytest.mark.parametrize("named, launcher, world_size", [("auto", None, 1), (2, "mnist-train", 2)])
def test_mpirun_with_one_process_trains_on_one_unless_the_config_requests_more(engine, tmp_path, named, launcher, world_size):
    changes = {**CONFIG, "max_steps": 2, "launch": {"processes_per_node": named}}
    with mpirun(engine, tmp_path, changes, 1) as process:
        assert process.wait() == 0, process.stderr
        summary = process.run_folder.summary()
    assert (summary["launcher"], summary["world_size"]) == (launcher or engine, world_size)
