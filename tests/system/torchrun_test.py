"""Tests the binary as a worker of torchrun and of other launchers that set the same variables."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support import (BINARY, LONG_RUN, Process, assert_gone, at_once, executable_of, free_port, rank_variables, require_torchrun,
                     send, swept, torchrun, train, wait_until, worker, workers, write_config)

require_torchrun()

# Two epochs of 20 steps.
CONFIG = {"batch_size": 45, "data": {"limit_train": 886}, "checkpoint": {"every_steps": 7}}


@pytest.fixture(scope="module")
def own_launcher(tmp_path_factory):
    return train(tmp_path_factory.mktemp("own"), CONFIG, processes=2)


def test_torchrun_gives_the_same_weights_as_our_launcher(tmp_path, own_launcher):
    with torchrun(tmp_path, CONFIG, "--standalone") as process:
        assert process.wait() == 0, process.stderr
        folder = process.run_folder
        assert "mnist-train failed" not in process.stderr
    assert folder.digest() == own_launcher.digest()
    assert folder.summary()["world_size"] == 2
    assert folder.read_json("accuracies.json") == own_launcher.read_json("accuracies.json")


def test_a_killed_rank_ends_torchrun_and_leaves_no_process(tmp_path):
    with torchrun(tmp_path, LONG_RUN, "--standalone") as process:
        process.wait_for_step(5)
        send(process.wait_for_ranks(2)[1], signal.SIGKILL)
        assert process.wait() != 0
        assert_gone(process, within_s=2)
        assert "rank 0" in process.stderr and "lost another rank" in process.stderr


def test_a_restart_by_torchrun_resumes_bit_identically_from_the_checkpoint(tmp_path, own_launcher):
    with torchrun(tmp_path, CONFIG, "--standalone", "--max-restarts", 1) as process:
        process.wait_for_step(16)
        send(process.wait_for_ranks(2)[1], signal.SIGKILL)
        assert process.wait() == 0, process.stderr
        folder = process.run_folder
        assert "resuming from" in process.stderr
    assert folder.summary()["restarts"] == 1
    assert [step["step"] for step in folder.steps()] == list(range(1, 41))
    assert folder.digest() == own_launcher.digest()


@pytest.fixture(scope="module")
def own_launcher_flat(tmp_path_factory):
    return train(tmp_path_factory.mktemp("flat"), CONFIG | FLAT, processes=2)


FLAT = {"gradient_averaging": {"strategy": "flat"}}  # also the strategy of ranks on two hosts


def two_agents(folder, *flags):
    """Starts two torchrun agents with one process each, like two nodes, but both on this machine, with Gloo on loopback."""
    config = write_config(folder, CONFIG | FLAT)
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nnodes", 2, "--nproc-per-node", 1,
               "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "two",
               "--local-addr", "127.0.0.1", *flags, BINARY, "--config", config, "--output", folder / "run"]
    return at_once(Process(command, folder, folder / "run", {"GLOO_SOCKET_IFNAME": "lo"}) for _ in range(2))


@pytest.mark.sweep
def test_torchrun_with_two_agents_gives_the_same_weights_as_our_launcher(tmp_path, own_launcher_flat):
    with two_agents(tmp_path) as agents:
        for agent in agents:
            assert agent.wait() == 0, agent.stderr
        assert agent.run_folder.digest() == own_launcher_flat.digest()
        assert agent.run_folder.summary()["launcher"] == "torchrun"


@pytest.mark.sweep
def test_two_torchrun_agents_restart_after_a_lost_rank_and_end_bit_identically(tmp_path, own_launcher_flat):
    with two_agents(tmp_path, "--max-restarts", 1) as agents:
        agents[0].wait_for_step(16)
        send(next(pid for agent in agents for rank, pid in agent.ranks().items() if rank == 1), signal.SIGKILL)
        for agent in agents:
            assert agent.wait() == 0, agent.stderr
        folder = agents[0].run_folder
    assert folder.summary()["restarts"] == 1
    assert folder.digest() == own_launcher_flat.digest()


def test_torchrun_reports_the_cause_of_a_failure(tmp_path):
    with torchrun(tmp_path, {"learning_rate": 1e30}, "--standalone") as process:
        assert process.wait() != 0
        report = process.stderr[process.stderr.index("Root Cause"):]
        assert "the loss became" in report, report


# Ranks started manually


def test_ranks_without_a_local_rank_find_out_that_they_share_a_host(tmp_path, own_launcher):
    """PyTorch's env:// needs only these variables; launchers that start one process per pod set no others."""
    command = [BINARY, "--config", write_config(tmp_path, CONFIG), "--output", tmp_path / "run"]
    needed = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": 1}
    with at_once(Process(command, tmp_path, tmp_path / "run", needed | {"RANK": rank}) for rank in range(2)) as ranks:
        for rank in ranks:
            assert rank.wait() == 0, rank.stderr
    folder = ranks[0].run_folder
    assert "shared_memory averaging" in ranks[0].stderr
    assert folder.digest() == own_launcher.digest()
    assert folder.read_json("config.json")["launch"]["processes_per_node"] == 2


@pytest.mark.parametrize("strategy, code", swept([("auto", 0), ("shared_memory", 2)], [("auto", 0)]))
def test_ranks_in_separate_user_namespaces_use_flat_and_shards_stay_bit_identical(tmp_path, strategy, code):
    """Like one rootless container per rank: no rank may access another rank's /proc/PID/fd."""
    apart = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("user namespaces are not available")
    changes = CONFIG | {"deterministic": {"shards": 2}, "gradient_averaging": {"strategy": strategy}}
    with workers(tmp_path, changes, before=apart) as (first, second):
        assert (first.wait(), second.wait()) == (code, code), first.stderr + second.stderr
        for process in (first, second) if code else (first,):
            assert "rank 1 cannot open the memory of rank 0 (Permission denied)" in process.stderr, process.stderr
        assert ("averaging gradients with strategy flat" in first.stderr) == (code == 0), first.stderr
    if code == 0:
        shared = train(tmp_path, changes, processes=2, output="shared")
        assert "shared_memory averaging" in shared.stderr
        assert first.run_folder.digest() == shared.digest()


def test_a_worker_restarted_after_a_refusal_is_refused_again(tmp_path, own_launcher):
    """torchrun restarts a worker that refused to start, but the run in the folder belongs to another launch."""
    before = own_launcher.digest()
    agent = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1",
             "TORCHELASTIC_ERROR_FILE": f"{tmp_path}/none_x/attempt_1/0/error.json"}
    command = [BINARY, "--config", write_config(tmp_path, CONFIG), "--output", own_launcher.path]
    with Process(command, tmp_path, variables=rank_variables() | agent) as process:
        assert process.wait() == 2
        assert "already contains a run" in process.stderr and "--resume auto" in process.stderr
    assert own_launcher.digest() == before


# Before the first step


def test_a_worker_stopped_before_its_first_step_exits_with_the_code_of_the_signal(tmp_path):
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with worker(tmp_path, 0, free_port(), CONFIG) as waiting:  # it waits for rank 1
            wait_until(lambda: "mnist-train-worker" in executable_of(waiting.pid), "the worker")
            time.sleep(0.3)
            waiting.stop(number, code)


def test_a_task_can_be_requeued_before_its_first_step(tmp_path):
    """SIGUSR1 stays pending until there is something to save."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho \"$@\" | tee {tmp_path}/asked\n")
    scontrol.chmod(0o755)
    slurm = {"SLURM_JOB_ID": 77, "SLURM_STEP_ID": 0, "SLURM_STEP_NODELIST": "here", "SLURM_NTASKS": 2,
             "MASTER_PORT": free_port(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    config = write_config(tmp_path, CONFIG | {"epochs": 1000})
    command = [BINARY, "--config", config, "--output", tmp_path / "run"]
    with at_once(Process(command, tmp_path, tmp_path / "run", slurm | {"SLURM_PROCID": task, "SLURM_LOCALID": task})
                 for task in range(2)) as tasks:
        wait_until(lambda: "mnist-train-worker" in executable_of(tasks[0].pid), "the worker")
        tasks[0].send(signal.SIGUSR1)
        for task in tasks:
            assert task.wait() == 143, task.stderr
            assert task.stdout == ""
    assert (tmp_path / "asked").read_text() == "requeue 77\n"
    assert tasks[0].run_folder.checkpoints()


OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
BY_SCRIPT = ["sh", "-c", '"$0" "$@"; exit $?']  # the shell stays the parent


@pytest.mark.parametrize("names, launcher, before", [(OPEN_MPI, "open-mpi", []), (MPICH, "mpich", BY_SCRIPT)])
def test_processes_of_one_mpirun_meet_on_one_host(tmp_path, own_launcher, names, launcher, before):
    """The environment does not identify the job, but the processes have a common ancestor."""
    command = [*before, BINARY, "--config", write_config(tmp_path, CONFIG), "--output", tmp_path / "run"]
    with at_once(Process(command, tmp_path, tmp_path / "run", dict(zip(names, (rank, 2, rank, 2)))) for rank in range(2)) as ranks:
        for rank in ranks:
            assert rank.wait() == 0, rank.stderr
    assert ranks[0].run_folder.digest() == own_launcher.digest()
    assert ranks[0].run_folder.summary()["launcher"] == launcher
    for rank in range(2):  # each log has the decision and the variables it is based on
        log = (tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text()
        assert f"rank {rank} of 2" in log and ", ".join(names[:3]) in log, log
