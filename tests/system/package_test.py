"""Installs the wheel from scripts/package with pip into an environment with only PyTorch."""

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest
from support import REPOSITORY, run_program

WHEELS = Path(sysconfig.get_paths()["purelib"])
pytestmark = pytest.mark.skipif(not (WHEELS / "torch").is_dir(), reason="this Python has no PyTorch wheel")
TRAINING = {"epochs": 1, "device": "cpu", "data": {"dataset": "mnist", "limit_train": 2000, "limit_test": 500}}


def package(folder):
    run_program(REPOSITORY / "scripts" / "package", "--output", folder, timeout=600)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return package(tmp_path_factory.mktemp("package"))


def run_pip(environment, *arguments, expect=0):
    return run_program(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", environment / "bin/python3",
                       *arguments, timeout=600, expect=expect).stdout


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Installs the wheel into a new virtual environment with this Python's torch, without network access."""
    folder = tmp_path_factory.mktemp("install") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    torch_path(folder).write_text(f"{WHEELS}\n")
    run_pip(folder, "install", "--quiet", "--no-index", "--no-deps", wheel)
    return folder


def torch_path(environment):
    """Returns the file that adds this Python's packages to an environment."""
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    return site_packages / "torch_of_tests.pth"


@pytest.fixture
def mnist_train(environment, tmp_path):
    """Returns a function that runs the installed program in an empty folder with a minimal environment."""
    def run(*arguments, expect=0, **variables):
        return run_program(environment / "bin/mnist-train", *arguments, expect=expect, cwd=tmp_path,
                           env={"HOME": str(tmp_path), **variables})
    return run


def test_pip_accepts_the_metadata_of_the_wheel(wheel, environment):
    assert "mnist-train" not in run_pip(environment, "check", expect=None)
    with zipfile.ZipFile(wheel) as files:
        assert files.testzip() is None
        (record,) = (name for name in files.namelist() if name.endswith(".dist-info/RECORD"))
        rows = {name: (digest, size) for name, digest, size in csv.reader(files.read(record).decode().splitlines())}
        assert rows.pop(record) == ("", "")
        for name, (digest, size) in rows.items():
            content = files.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={expected}", len(content)), name
        assert {*rows, record} == set(files.namelist())
        metadata = files.read(record.replace("RECORD", "METADATA")).decode()
        assert "\nRequires-Dist: torch==2.11.*\n" in metadata
        assert not re.findall(r"\]\((?!\w+://)|src=", metadata)


@pytest.mark.sweep
def test_packaging_a_build_twice_gives_identical_wheels(wheel, tmp_path):
    assert package(tmp_path).read_bytes() == wheel.read_bytes()


def test_the_wheel_trains_from_any_folder_and_python_execs_the_binary(environment, tmp_path):
    program = subprocess.Popen([environment / "bin/mnist-train", "--config", "-", "--output", "run", "--nproc-per-node=2"],
                               stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={})
    deadline = time.monotonic() + 30
    while (executable := Path(f"/proc/{program.pid}/exe").readlink()).name != "mnist-train":  # the program waits for the config
        assert time.monotonic() < deadline, executable
        time.sleep(0.01)
    assert environment in executable.parents
    _, messages = program.communicate(json.dumps(TRAINING), timeout=100)
    assert program.returncode == 0, messages
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "finished" and summary["world_size"] == 2 and summary["test_accuracy"] > 0.3


def test_configs_in_the_wheel_are_found_by_name(mnist_train):
    mnist_train("--config", "mnist_fast", "--dry-run")
    done = mnist_train("--config", "configs/mnits.json", expect=2)
    names = sorted(config.stem for config in (REPOSITORY / "configs").glob("*.json"))
    assert f"configs that come with mnist-train: {', '.join(names)}" in done.stderr


def test_fetch_works_from_the_wheel(mnist_train, tmp_path):
    mirror = REPOSITORY / "third_party/mnist"
    mnist_train("fetch", "mnist", "--to", tmp_path / "fetched", "--mirror", mirror.as_uri())
    assert len(list((tmp_path / "fetched").glob("*.gz"))) == 4


def test_an_incompatible_torch_is_reported_with_a_remedy(environment, mnist_train, tmp_path):
    (tmp_path / "older/torch").mkdir(parents=True)
    (tmp_path / "older/torch/__init__.py").touch()
    (tmp_path / "older/torch/version.py").write_text("__version__ = '2.10.1+cpu'\n")
    done = mnist_train("--config", "mnist", expect=2, PYTHONPATH=str(tmp_path / "older"))
    assert done.stdout == ""
    assert "needs PyTorch 2.11, but " in done.stderr and f"has 2.10.1+cpu in {tmp_path}/older/torch" in done.stderr
    assert "-m pip install 'torch==2.11.*'" in done.stderr and "Traceback" not in done.stderr
    hidden = torch_path(environment).rename(tmp_path / "hidden.pth")
    assert "has none\n" in mnist_train("--config", "mnist", expect=2).stderr
    hidden.rename(torch_path(environment))
