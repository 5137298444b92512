"""scripts/launch turns torchrun's flags into the right command."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCH = Path(__file__).resolve().parents[2] / "scripts" / "launch"


@pytest.fixture
def tree(tmp_path):
    """A copy of the script beside a binary and a torchrun that print their arguments."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/launch").write_text(LAUNCH.read_text())
    for name in ("build/bin/mnist-train", "path/torchrun"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(f'#!/bin/sh\necho {path.name} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def launch(tree, *arguments):
    return subprocess.run([sys.executable, tree / "scripts/launch", *arguments], capture_output=True, text=True,
                          env={"PATH": f"{tree / 'path'}:/usr/bin:/bin"})


def test_one_node_runs_the_binary(tree):
    done = launch(tree, "--nproc_per_node", "2", "--max-restarts", "1", "--config", "c.json", "--set", "epochs=2")
    assert done.stdout == ("mnist-train --config c.json --set epochs=2 --nproc-per-node 2 "
                           "--set launch.max_restarts=1\n")


def test_several_nodes_run_torchrun(tree):
    done = launch(tree, "--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--master_port", "29500",
                  "--nproc-per-node", "4", "--config", "c.json")
    binary = tree / "build/bin/mnist-train"
    assert done.stdout == ("torchrun --no-python --nnodes 2 --nproc-per-node 4 --node-rank 1 --master-addr a "
                           f"--master-port 29500 {binary} --config c.json\n")


def test_what_is_missing_is_said(tree):
    (tree / "path/torchrun").unlink()
    done = launch(tree, "--nnodes", "2", "--config", "c.json")
    assert done.returncode != 0 and "scripts/setup --cuda" in done.stderr
    (tree / "build/bin/mnist-train").unlink()
    done = launch(tree, "--config", "c.json")
    assert done.returncode != 0 and "scripts/setup builds it" in done.stderr
