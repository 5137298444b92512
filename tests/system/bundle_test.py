"""Tests the archive from scripts/bundle and the wheel from scripts/package on a minimal system with only Python and PyTorch."""

import os
import re
import shutil
import sysconfig
import tarfile
from pathlib import Path

import pytest
from fake_gpus import LIBRARIES, ON_GPU, fake_gpus, needs_fake_gpus
from support import REPOSITORY, run_program, train

pytestmark = pytest.mark.sweep

WHEELS = Path(sysconfig.get_paths()["purelib"])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Builds the archive, unpacks it and returns its folder."""
    folder = tmp_path_factory.mktemp("bundle")
    run_program(REPOSITORY / "scripts" / "bundle", "--output", folder / "bundle.tar.gz", timeout=600)
    with tarfile.open(folder / "bundle.tar.gz") as archive:
        archive.extractall(folder)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Builds the wheel and returns its folder."""
    folder = tmp_path_factory.mktemp("package")
    run_program(REPOSITORY / "scripts" / "package", "--output", folder, timeout=600)
    return folder


@pytest.fixture(scope="module")
def bare_system(tmp_path_factory, bundle, package):
    """Returns a function that runs a shell script in a new minimal system, with the bundle in /bundle and the wheel in /package."""
    if os.geteuid() != 0 or run_program("unshare", "-m", "true", expect=None).returncode != 0:
        pytest.skip("mount and chroot require root")
    if not shutil.which("debootstrap"):
        pytest.skip("debootstrap is not installed")
    if not (WHEELS / "torch").is_dir():
        pytest.skip("this Python has no PyTorch wheels")
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    root = tmp_path_factory.mktemp("bare") / "root"
    made = run_program("debootstrap", "--variant=minbase", "--include=python3", release["VERSION_CODENAME"].strip('"'), root,
                       timeout=600, expect=None)
    if made.returncode != 0:
        pytest.skip(f"debootstrap failed: {made.stdout[-300:]}")
    for folder in ("bundle", "package", "wheels", "fake_gpu", "with_fake_gpu"):
        (root / folder).mkdir()
    mounts = {"bundle": bundle, "package": package, "wheels": WHEELS, "dev": "/dev", "proc": "/proc"}
    if LIBRARIES.is_dir():
        mounts |= {"fake_gpu": LIBRARIES, "with_fake_gpu": REPOSITORY / "tests" / "support" / "fake_gpu"}
    script = " && ".join(f"mount --bind '{source}' '{root}/{target}'" for target, source in mounts.items())

    def run_there(command, expect=0):
        inside = f"export LANG=C.UTF-8 PYTHONPATH=/wheels MNIST_TRAIN_FAKE_GPU_LIBRARIES=/fake_gpu XDG_CACHE_HOME=/fake_gpu/cache; cd /tmp; {command}"
        return run_program("unshare", "-m", "bash", "-c", f'{script} && exec chroot "$1" /bin/bash -c "$2"', "bash", root, inside,
                           env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, timeout=300, expect=expect)

    return run_there


def test_the_bundle_trains_and_resumes_on_a_bare_system(bare_system):
    assert "smoke: passed" in bare_system("/bundle/scripts/smoke --cpu").stdout


def test_the_error_for_a_missing_data_set_lists_the_folder_of_the_bundle(bare_system):
    done = bare_system("LD_LIBRARY_PATH=/wheels/torch/lib /bundle/bin/mnist-train --config mnist --set data.dataset=fashion-mnist",
                       expect=3)
    assert "(of the bundle)" in done.stderr, done.stderr


def test_every_link_in_the_bundled_documents_leads_to_a_file_in_the_bundle(bundle):
    run_program("python3", REPOSITORY / "scripts" / "lib" / "check_markdown.py", bundle)
    pictures = [name for name in re.findall(r'src="([^"]+)"', (bundle / "README.md").read_text()) if (bundle / name).is_file()]
    assert pictures and (bundle / "src/cli/README.md").is_file()


def test_the_wheel_trains_on_a_bare_system(bare_system):
    done = bare_system("python3 -m pip install --quiet --no-index --no-deps --break-system-packages --ignore-installed /package/*.whl && "
                       "mnist-train --config mnist --set max_steps=100 --set device=cpu --output run && cat run/summary.json")
    assert '"status":"finished"' in done.stdout.replace(" ", ""), done.stdout


def test_every_library_is_found_on_a_bare_system(bare_system):
    done = bare_system("LD_LIBRARY_PATH=/wheels/torch/lib:/wheels/nvidia/cu13/lib ldd /bundle/bin/*", expect=None)
    assert "libtorch_cpu.so" in done.stdout, done.stdout + done.stderr
    missing = {line.split()[0] for line in done.stdout.splitlines() if "not found" in line}
    assert not missing


@needs_fake_gpus
def test_gpu_check_runs_from_the_bundle_on_a_bare_system(bare_system, tmp_path):
    """Runs gpu_check on mock GPUs, without the parts that compare numbers. Mock GPUs compile kernels with the C++ compiler, which
    a bare system lacks, so a run outside that system fills the kernel cache first."""
    train(tmp_path, ON_GPU | {"max_steps": 1}, variables=fake_gpus(1))
    done = bare_system("/with_fake_gpu/with_fake_gpus -n 1 /bundle/scripts/gpu_check --parts nccl,features --output /tmp/result.json; "
                       "code=$?; cat /tmp/result.json; ls /tmp; exit $code")
    assert '"nccl":' in done.stdout and '"features":' in done.stdout and "result-logs.tar.gz" in done.stdout
