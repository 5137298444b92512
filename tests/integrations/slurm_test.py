"""Tests a real Slurm (Debian's slurm-wlm and munge) with one controller and two nodes on this machine. Requires root."""

import os
import shutil
import signal
import socket
import subprocess

import pytest
from support import (BINARY, REPOSITORY, RunFolder, all_pids, environment_of, executable_of, free_port, run, run_program,
                     send, train, wait_until, write_config)

pytestmark = [
    pytest.mark.skipif(shutil.which("slurmctld") is None or shutil.which("munged") is None,
                       reason="Slurm is not installed; scripts/test --integrations installs it"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd requires root"),
]

CONFIG = {"batch_size": 45, "data": {"limit_train": 886}}
LONG_RUN = {"epochs": 400, "checkpoint": {"keep_best": False}, "data": {"limit_test": 100}}

SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=requeue_delay=1
ReturnToService=2
JobRequeue=1
KillWait=5
InactiveLimit=0
LaunchParameters=use_interactive_step
InteractiveStepOptions="--interactive --preserve-env $SHELL"
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={port_one} CPUs=2 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={port_two} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Runs the Slurm daemons, and commands that use them."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        self.environment |= {"SLURM_CONF": str(folder / "slurm.conf"), "MNIST_TRAIN_DATA": os.environ.get("MNIST_TRAIN_DATA", "")}
        self.daemons = []
        os.chmod(folder, 0o755)
        (folder / "state").mkdir()
        for node in ("one", "two"):
            (folder / f"spool.{node}").mkdir()
        (folder / "slurm.conf").write_text(SLURM_CONF.format(
            folder=folder, host=socket.gethostname().split(".")[0], controller_port=free_port(), port_one=free_port(),
            port_two=free_port()))
        (folder / "munge.key").write_bytes(os.urandom(1024))
        os.chmod(folder / "munge.key", 0o400)
        self.start("munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
                   f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
                   f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed")
        wait_until(lambda: (folder / "munge.socket").exists(), "munged")
        self.start("slurmctld", "-D", "-i", "-f", folder / "slurm.conf")
        for node in ("one", "two"):
            self.start("slurmd", "-D", "-N", node, "-f", folder / "slurm.conf")
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T %D", expect=None).stdout.split() == ["idle", "2"], "idle nodes", 60)

    def start(self, *command):
        self.daemons.append(subprocess.Popen(list(map(str, command)), env=self.environment, stdout=subprocess.DEVNULL,
                                             stderr=open(self.folder / f"{command[0]}.err", "a")))

    def run(self, *command, expect=0, **variables):
        return run_program(*command, env=self.environment | variables, cwd=self.folder, expect=expect)

    def state(self, job):
        return self.run("squeue", "-h", "-j", job, "-t", "all", "-o", "%T", expect=None).stdout.strip()

    def submit(self, script, *flags):
        path = self.folder / "job.sbatch"
        path.write_text("#!/bin/bash\n" + script)
        return self.run("sbatch", "--parsable", "-N", "2", "-n", "2", "--export=ALL,MASTER_ADDR=127.0.0.1", *flags, path).stdout.strip()

    def stop(self):
        self.run("scancel", "--state=RUNNING", "--user=root", expect=None)
        wait_until(lambda: self.run("squeue", "-h", expect=None).stdout.strip() == "", "the end of all jobs", 30)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


LONGER = {**CONFIG, "epochs": 12, "data": {"limit_train": 2560, "limit_test": 100}, "checkpoint": {"every_steps": 7}}


@pytest.fixture(scope="module")
def expected_longer(tmp_path_factory):
    return train(tmp_path_factory.mktemp("longer"), LONGER, processes=2)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return train(tmp_path_factory.mktemp("own"), CONFIG, processes=2)


def ready_job(config, output):
    """Returns scripts/cluster/slurm.sbatch for this binary, config and output, without its #SBATCH lines."""
    lines = (REPOSITORY / "scripts" / "cluster" / "slurm.sbatch").read_text().splitlines()
    script = "\n".join(line for line in lines[1:] if not line.startswith("#SBATCH"))
    for word, other in (("build/bin/mnist-train", BINARY), ("configs/mnist.json", config), ("runs/slurm-$SLURM_JOB_ID", output)):
        assert script.count(word) == 1
        script = script.replace(word, str(other))
    return script + "\n"


def wait_for_steps(folder, count):
    wait_until(lambda: folder.last_step() > count, "steps", 60)


def tasks_of(job):
    return [pid for pid in all_pids() if environment_of(pid).get("SLURM_JOB_ID") == job and "mnist-train-worker" in executable_of(pid)]


# Node names do not resolve here, so the address is set.
ADDRESS = {"MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_srun_gives_the_same_weights_as_our_launcher(slurm, expected, tmp_path, nodes):
    config = write_config(tmp_path, CONFIG)
    slurm.run("srun", "-N", nodes, "-n", 2, BINARY, "--config", config, "--output", tmp_path / "run", **(ADDRESS if nodes == 2 else {}))
    folder = RunFolder(tmp_path / "run")
    assert folder.digest() == expected.digest()
    assert folder.summary()["launcher"] == "slurm"


def test_the_interactive_shell_of_salloc_starts_its_own_ranks(slurm, tmp_path):
    config = write_config(tmp_path, CONFIG | {"max_steps": 1})
    shell = tmp_path / "shell"
    shell.write_text(f"#!/bin/sh\nexec {BINARY} --config {config} --output {tmp_path}/run\n")
    shell.chmod(0o755)
    slurm.run("salloc", "-n", 2, SHELL=str(shell))
    assert RunFolder(tmp_path / "run").summary()["launcher"] == "mnist-train"


@pytest.mark.skipif(shutil.which("mpiexec.mpich") is None, reason="MPICH is not installed; scripts/test --integrations installs it")
def test_mpiexec_sets_the_ranks_even_if_it_starts_its_daemons_with_srun(slurm, expected, tmp_path):
    config = write_config(tmp_path, CONFIG)
    slurm.run("salloc", "-N", 1, "-n", 2, "mpiexec.mpich", "-n", 2, BINARY, "--config", config, "--output", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.digest() == expected.digest()
    assert folder.summary()["launcher"] == "mpich"


def test_a_killed_task_ends_the_step(slurm, tmp_path):
    config = write_config(tmp_path, LONG_RUN)
    job = slurm.submit(f"srun --kill-on-bad-exit=1 {BINARY} --config {config} --output {tmp_path}/run\n", f"--output={tmp_path}/log")
    folder = RunFolder(tmp_path / "run")
    wait_for_steps(folder, 3)
    send(tasks_of(job)[-1], signal.SIGKILL)
    wait_until(lambda: slurm.state(job) not in ("RUNNING", "COMPLETING"), "the end of the job", 60)
    assert slurm.state(job) == "FAILED"


def test_the_shipped_job_requeues_itself_after_a_lost_task_and_ends_bit_identically(slurm, expected_longer, tmp_path):
    job = slurm.submit(ready_job(write_config(tmp_path, LONGER), tmp_path / "run"), "--requeue", "--open-mode=append",
                       f"--output={tmp_path}/log")
    folder = RunFolder(tmp_path / "run")
    wait_for_steps(folder, 10)
    send(tasks_of(job)[-1], signal.SIGKILL)
    wait_until(lambda: slurm.state(job) in ("COMPLETED", "FAILED"), "the end of the job", 200)
    log = (tmp_path / "log").read_text()
    assert slurm.state(job) == "COMPLETED", log
    assert "resuming from" in log
    assert folder.summary()["restarts"] == 1
    assert folder.digest() == expected_longer.digest()


def test_scancel_saves_and_ends_the_job(slurm, expected_longer, tmp_path):
    config = write_config(tmp_path, LONGER)
    job = slurm.submit(ready_job(config, tmp_path / "run"), f"--output={tmp_path}/log")
    folder = RunFolder(tmp_path / "run")
    wait_for_steps(folder, 10)
    slurm.run("scancel", job)
    wait_until(lambda: slurm.state(job) == "CANCELLED" and not tasks_of(job), "the end of the job", 60)
    assert folder.summary()["status"] == "stopped", (tmp_path / "log").read_text()
    assert int(folder.checkpoints()[-1].stem[5:]) == folder.last_step()
    run("--config", config, "--output", folder.path, "--resume", "auto", "--nproc-per-node", 2, expect=0)
    assert folder.digest() == expected_longer.digest()


def test_a_job_saves_before_its_time_limit(slurm, tmp_path):
    changes = {**LONG_RUN, "epochs": 100000}
    job = slurm.submit(ready_job(write_config(tmp_path, changes), tmp_path / "run"), "--time=1", f"--output={tmp_path}/log")
    folder = RunFolder(tmp_path / "run")
    wait_for_steps(folder, 3)
    wait_until(lambda: slurm.state(job) == "TIMEOUT" and not tasks_of(job), "the end of the job", 180)
    assert folder.summary()["status"] == "stopped", (tmp_path / "log").read_text()
    assert int(folder.checkpoints()[-1].stem[5:]) == folder.last_step()


def test_usr1_saves_and_requeues_and_the_job_ends_bit_identically(slurm, expected_longer, tmp_path):
    config = write_config(tmp_path, LONGER)
    job = slurm.submit(f"srun {BINARY} --config {config} --output {tmp_path}/run\n", "--requeue",
                       "--open-mode=append", f"--output={tmp_path}/log")
    folder = RunFolder(tmp_path / "run")
    wait_for_steps(folder, 10)
    slurm.run("scancel", "--signal=USR1", job)
    wait_until(lambda: slurm.state(job) == "COMPLETED", "the end of the job", 200)
    assert "requeued Slurm job" in (tmp_path / "log").read_text()
    assert "resuming from" in (tmp_path / "log").read_text()
    assert folder.digest() == expected_longer.digest()
