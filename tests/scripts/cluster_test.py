"""The job files in scripts/cluster pass the right arguments to the launchers."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[2] / "scripts" / "cluster"


@pytest.fixture
def engine(tmp_path):
    """Returns a folder with a fake mpirun that prints its arguments, and a fake MPICH mpiexec that also prints its environment."""
    for name, version, passed_on in (("mpirun", "mpirun (Open MPI) 4.1.4", ""),
                                     ("mpiexec", "HYDRA build details:", "$MASTER_ADDR:$MASTER_PORT")):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; else echo "$*" {passed_on}; fi\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def mpirun(engine, *arguments, command="mpirun"):
    return subprocess.run([CLUSTER / "mpirun.sh", *arguments], capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{engine}:{os.environ['PATH']}", "MPIRUN": command})


@pytest.mark.parametrize("hosts", ["node1\nnode2\n", "node1 slots=4\nnode2 slots=4\n", "node1:4\n",
                                   "# ours\n\n  node1\tslots=1\n", "node1"])
def test_open_mpi_gets_the_first_host_of_the_file(engine, hosts):
    (engine / "hosts").write_text(hosts)
    done = mpirun(engine, engine / "hosts", "2")
    assert " -x MASTER_ADDR=node1 -x MASTER_PORT=29500 " in done.stdout, done.stderr


def test_mpich_gets_the_first_host_through_the_environment(engine):
    (engine / "hosts").write_text("node1:4\nnode2:4\n")
    done = mpirun(engine, engine / "hosts", "8", command="mpiexec")
    assert done.stdout.startswith(f"--hostfile {engine}/hosts -n 8 build/bin/mnist-train "), done.stderr
    assert done.stdout.endswith(" node1:29500\n")


def test_a_host_file_without_hosts_is_refused(engine):
    (engine / "hosts").write_text("# none\n")
    done = mpirun(engine, engine / "hosts", "2")
    assert done.returncode != 0 and "lists no hosts" in done.stderr


def test_open_mpi_on_one_host_needs_no_file(engine):
    assert mpirun(engine).stdout == "-n 2 build/bin/mnist-train --config configs/mnist.json --output runs/mpirun --resume auto\n"
