"""scripts/package's wheel, installed by pip into an environment that has nothing but PyTorch beside it."""

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
from support import REPOSITORY

WHEELS = Path(sysconfig.get_paths()["purelib"])
pytestmark = pytest.mark.skipif(not (WHEELS / "torch").is_dir(), reason="this Python has no wheel of PyTorch")
TRAINING = {"epochs": 1, "device": "cpu", "data": {"dataset": "mnist", "limit_train": 2000, "limit_test": 500}}


def package(folder):
    done = subprocess.run([REPOSITORY / "scripts" / "package", "--output", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return package(tmp_path_factory.mktemp("package"))


def install(wheel, folder, with_torch):
    """A virtual environment with the wheel, which sees this Python's torch or none. Nothing is asked of the network."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    if with_torch:
        (site_packages / "torch_of_tests.pth").write_text(f"{WHEELS}\n")
    run_pip(folder, "install", "--quiet", "--no-index", "--no-deps", wheel)
    return folder


def run_pip(environment, *arguments):
    done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python",
                           environment / "bin/python3", *arguments], capture_output=True, text=True)
    assert done.returncode == 0 or arguments[0] == "check", done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    return install(wheel, tmp_path_factory.mktemp("install") / "environment", with_torch=True)


@pytest.fixture
def mnist_train(environment, tmp_path):
    """Runs the installed program in a folder of its own, without any variable that could help it."""
    def run(*arguments, **variables):
        return subprocess.run([environment / "bin/mnist-train", *map(str, arguments)], capture_output=True, text=True,
                              cwd=tmp_path, env={"HOME": str(tmp_path), **variables}, timeout=100)
    return run


def test_pip_is_content_with_what_the_wheel_says(wheel, environment):
    assert "mnist-train" not in run_pip(environment, "check")
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


def test_the_same_build_gives_the_same_bytes(wheel, tmp_path):
    assert package(tmp_path).read_bytes() == wheel.read_bytes()


def test_it_trains_from_anywhere_and_no_python_stays(environment, tmp_path):
    program = subprocess.Popen([environment / "bin/mnist-train", "--config", "-", "--output", "run", "--nproc-per-node=2"],
                               stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={})
    deadline = time.monotonic() + 30
    while (executable := Path(f"/proc/{program.pid}/exe").readlink()).name != "mnist-train":  # it waits for the config
        assert time.monotonic() < deadline, executable
        time.sleep(0.01)
    assert environment in executable.parents
    _, messages = program.communicate(json.dumps(TRAINING), timeout=100)
    assert program.returncode == 0, messages
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "finished" and summary["world_size"] == 2 and summary["test_accuracy"] > 0.3


def test_the_configs_that_come_with_it_are_found_by_name(mnist_train):
    for config in (REPOSITORY / "configs").glob("*.json"):
        done = mnist_train("--config", config.stem, "--dry-run")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["epochs"] == json.loads(config.read_text()).get("epochs", 10)
    done = mnist_train("--config", "configs/mnits.json")
    assert done.returncode == 2 and "configs that come with mnist-train: dali_mlp, " in done.stderr


def test_the_other_programs_and_what_shells_read_are_there(environment, mnist_train, tmp_path):
    mirror = REPOSITORY / "third_party/mnist"
    done = mnist_train("fetch", "mnist", "--to", tmp_path / "fetched", "--mirror", mirror.as_uri())
    assert done.returncode == 0 and len(list((tmp_path / "fetched").glob("*.gz"))) == 4, done.stderr
    for path in ("man/man1/mnist-train.1", "bash-completion/completions/mnist-train", "zsh/site-functions/_mnist-train"):
        assert (environment / "share" / path).stat().st_size > 0, path


def test_a_torch_that_does_not_fit_is_named_with_the_way_on(wheel, mnist_train, tmp_path):
    (tmp_path / "older/torch").mkdir(parents=True)
    (tmp_path / "older/torch/__init__.py").touch()
    (tmp_path / "older/torch/version.py").write_text("__version__ = '2.10.1+cpu'\n")
    done = mnist_train("--config", "mnist", PYTHONPATH=str(tmp_path / "older"))
    assert done.returncode == 2 and done.stdout == ""
    assert "needs PyTorch 2.11, but " in done.stderr and f"has 2.10.1+cpu in {tmp_path}/older/torch" in done.stderr
    assert "-m pip install 'torch==2.11.*'" in done.stderr and "Traceback" not in done.stderr
    without = install(wheel, tmp_path / "without", with_torch=False)
    done = subprocess.run([without / "bin/mnist-train", "--config", "mnist"], capture_output=True, text=True, env={})
    assert done.returncode == 2 and "has none\n" in done.stderr, done.stderr
