"""scripts/launch converts torchrun's flags to the right command."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCH = Path(__file__).resolve().parents[2] / "scripts" / "launch"


@pytest.fixture
def tree(tmp_path):
    """Returns a copy of the script next to a binary and a torchrun that print their arguments."""
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
    assert done.stdout == "mnist-train --config c.json --set epochs=2 --nproc-per-node 2 --set launch.max_restarts=1\n"


def test_several_nodes_run_torchrun(tree):
    done = launch(tree, "--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--master_port", "29500",
                  "--nproc-per-node", "4", "--config", "c.json")
    binary = tree / "build/bin/mnist-train"
    assert done.stdout == ("torchrun --no-python --nnodes 2 --nproc-per-node 4 --node-rank 1 --master-addr a "
                           f"--master-port 29500 {binary} --config c.json\n")


def test_missing_programs_are_reported(tree):
    (tree / "path/torchrun").unlink()
    done = launch(tree, "--nnodes", "2", "--config", "c.json")
    assert done.returncode == 2 and "scripts/setup --cuda" in done.stderr
    (tree / "build/bin/mnist-train").unlink()
    done = launch(tree, "--config", "c.json")
    assert done.returncode == 2 and "scripts/setup builds it" in done.stderr


def test_torchruns_values_of_nproc_per_node_are_translated(tree):
    for word, device in (("gpu", " --set device=cuda"), ("cpu", " --set device=cpu"), ("auto", "")):
        done = launch(tree, "--nproc-per-node", word, "--config", "c.json")
        assert done.stdout == f"mnist-train --config c.json --nproc-per-node auto{device}\n"


def test_two_dashes_may_separate_the_flags(tree):
    done = launch(tree, "--nproc-per-node", "2", "--", "--config", "c.json")
    assert done.stdout == "mnist-train --config c.json --nproc-per-node 2\n"
    done = launch(tree, "--nnodes", "2", "--", "--config", "c.json")
    assert done.stdout.endswith("bin/mnist-train --config c.json\n") and " -- " not in done.stdout


def test_flags_without_effect_on_one_node_are_reported(tree):
    done = launch(tree, "--standalone", "--rdzv-id", "7", "--node_rank", "0", "--config", "c.json")
    assert done.stdout == "mnist-train --config c.json\n"
    assert "--node-rank, --rdzv-id: ignored" in done.stderr
    assert launch(tree, "--config", "c.json").stderr == ""


def test_a_single_process_command_refuses_several_processes(tree):
    done = launch(tree, "--nproc-per-node", "2", "export", "--checkpoint", "a", "--output", "b")
    assert (done.returncode, done.stdout) == (2, "")
    assert "mnist-train export runs in one process" in done.stderr
    assert launch(tree, "export", "--checkpoint", "a").stdout == "mnist-train export --checkpoint a\n"
    done = launch(tree, "--nproc-per-node", "2", "evaluate", "--checkpoint", "a")
    assert done.stdout == "mnist-train evaluate --checkpoint a --nproc-per-node 2\n"
