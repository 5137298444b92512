"""Tests how scripts/setup and scripts/test install dependencies, also after changes to the system."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def bash(script, *arguments):
    sources = 'source "$0/scripts/lib/common.sh"; source "$0/scripts/lib/install.sh"; '
    command = ["bash", "-euo", "pipefail", "-c", sources + script, REPOSITORY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("major, expected", [(12, "ON"), (13, "ON"), (14, "ON"), (99, "OFF")])
def test_warnings_are_errors_with_the_compilers_of_the_supported_systems(major, expected):
    assert bash('c++() { echo "$major"; }; major=$1; warnings_as_errors', str(major)).stdout == f"{expected}\n"


def test_wheels_are_reinstalled_after_an_upgrade_of_python(tmp_path):
    stamps = tmp_path / ".mnist-train"
    stamps.mkdir()
    (stamps / "torch-cpu").write_text("torch==2.11.0\n")
    result = bash('venv=$1; make_venv "$2"', tmp_path, sys.executable)
    assert result.returncode == 0, result.stderr
    assert not stamps.exists()


@pytest.mark.parametrize("program, code", [("exit 0", 0), ("echo cannot run >&2; exit 1", 1), (None, 77)])
def test_the_format_check_does_not_pass_if_clang_format_cannot_run(tmp_path, program, code):
    shutil.copytree(REPOSITORY / "scripts" / "lib", tmp_path / "scripts" / "lib")
    for folder in ("src", "tests"):
        (tmp_path / folder).mkdir()
    if program:
        path = tmp_path / ".venv/lib/python3.11/site-packages/clang_format/data/bin/clang-format"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    result = subprocess.run([tmp_path / "scripts/lib/check_format"], capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stdout + result.stderr
