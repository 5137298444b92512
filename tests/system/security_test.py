"""Tests the attack surface: link flags of the programs, file modes, symbolic links, and secrets in the environment."""

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from support import BINARY, run, train, write_config

SMALL_RUN = {"max_steps": 3, "data": {"limit_train": 256, "limit_test": 10}}
PROGRAMS = [name for name in ("mnist-train", "mnist-train-worker", "libmnist-train-cuda.so") if (Path(BINARY).parent / name).exists()]


def readelf(program, *flags):
    return subprocess.run(["readelf", "-W", *flags, Path(BINARY).parent / program], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed (binutils)")
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_hardened(program):
    assert re.search(r"Type:\s+DYN", readelf(program, "-h"))  # position-independent
    segments = readelf(program, "-l")
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK\s.*\sRW\s", segments)  # the stack is not executable
    dynamic = readelf(program, "-d")
    assert "BIND_NOW" in dynamic or re.search(r"FLAGS_1.*NOW", dynamic)
    assert not re.search(r"R(UN)?PATH.*\[(.*:)?(:|\.[:/\]]|\])", dynamic)  # no library search in the working directory
    symbols = readelf(program, "--dyn-syms")
    assert "__stack_chk_fail" in symbols
    assert program.endswith(".so") or re.search(r"__\w+_chk\b(?<!__stack_chk)", symbols)  # _FORTIFY_SOURCE


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    secrets = {"AWS_SECRET_ACCESS_KEY": "do-not-tell-1", "WANDB_API_KEY": "do-not-tell-2", "MY_TOKEN": "do-not-tell-3"}
    return train(tmp_path_factory.mktemp("finished"), SMALL_RUN, processes=2, variables=secrets)


def test_files_of_a_run_are_writable_only_by_their_owner(finished):
    for path in [finished.path, *finished.path.rglob("*")]:
        mode = path.lstat().st_mode
        assert stat.S_ISLNK(mode) or not mode & (stat.S_IWGRP | stat.S_IWOTH), path
        assert not stat.S_ISREG(mode) or not mode & 0o111, path


def test_the_environment_is_not_recorded(finished):
    for path in finished.path.rglob("*"):
        assert path.is_dir() or b"do-not-tell" not in path.read_bytes(), path
    assert "do-not-tell" not in finished.stderr


def test_symbolic_links_in_place_of_files_are_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (".lock", "metrics.jsonl", "logs/rank-0.log"):
        output = tmp_path / name.replace("/", "-")
        (output / name).parent.mkdir(parents=True)
        (output / name).symlink_to(victim)
        result = run("--config", write_config(tmp_path, SMALL_RUN), "--output", output, "--resume", "auto", "--nproc-per-node", 1)
        assert result.returncode in (1, 2), f"{name}: {result.stderr}"
        assert str(output / name) in result.stderr, result.stderr
        assert victim.read_text() == "precious"


def test_replacing_a_file_does_not_write_through_links(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    output = tmp_path / "run"
    output.mkdir()
    names = ("config.json", "model.pt", "accuracies.json", "summary.json")
    for name in names:
        (output / name).symlink_to(victim)
    run("--config", write_config(tmp_path, SMALL_RUN), "--output", output, "--resume", "auto", "--nproc-per-node", 1, expect=0)
    assert victim.read_text() == "precious"
    assert not any((output / name).is_symlink() for name in names)


def test_no_files_are_left_in_shared_memory(tmp_path):
    before = set(Path("/dev/shm").glob("mnist-train-*"))
    train(tmp_path, SMALL_RUN | {"gradient_averaging": {"strategy": "shared_memory"}}, processes=2)
    assert not set(Path("/dev/shm").glob("mnist-train-*")) - before
