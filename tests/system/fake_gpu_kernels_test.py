"""The program's own kernels on mock GPUs: compilation, use, and training without them."""

import shutil

import pytest
from fake_gpus import LIBRARIES, ON_GPU, fake_gpus, needs_fake_gpus, reports
from support import train

pytestmark = needs_fake_gpus

CHANGES = ON_GPU | {"precision": "bf16", "epochs": 1}


def run(folder, changes=None, expect=0, **variables):
    folder.mkdir(exist_ok=True)
    return train(folder, CHANGES | (changes or {}), output="run", expect=expect,
                 variables=fake_gpus(1, report=folder / "report") | variables)


def launches(folder):
    return sum(report["kernels"].get("softmax_loss_bf16", 0) for report in reports(folder / "report"))


def test_own_kernels_are_used_and_computed(tmp_path):
    folder = run(tmp_path)
    assert launches(tmp_path) > 0
    # All products are 0 on a mock, so all classes are as likely.
    assert [line["train_loss"] for line in folder.epochs()] == [pytest.approx(2.302585, abs=1e-5)]


def test_they_are_compiled_once(tmp_path):
    run(tmp_path / "first")  # fills the cache that all tests share, if no other test has
    cache = shutil.copytree(LIBRARIES / "cache", tmp_path / "cache")
    run(tmp_path / "second", XDG_CACHE_HOME=cache, FAKE_GPU_NVRTC_FAILS_DEVICE=0)
    contents = {path: path.read_bytes() for path in (cache / "mnist-train" / "kernels").iterdir()}
    for path, content in contents.items():
        path.write_bytes(content[:1000])  # of no use: compiled again
    run(tmp_path / "third", XDG_CACHE_HOME=cache)
    assert launches(tmp_path / "second") > 0 and launches(tmp_path / "third") > 0
    assert any(path.stat().st_size == len(content) for path, content in contents.items())


def test_without_them_libtorch_computes(tmp_path):
    assert run(tmp_path, {"gpu_kernels": "off"}).summary()["status"] == "finished"
    assert launches(tmp_path) == 0


def test_a_run_that_cannot_compile_them_suggests_to_do_without(tmp_path):
    folder = run(tmp_path, expect=1, XDG_CACHE_HOME=tmp_path / "cache", FAKE_GPU_NVRTC_FAILS_DEVICE=0)
    assert "FAKE_GPU_NVRTC_FAILS_DEVICE is set" in folder.stderr and 'set gpu_kernels to "off"' in folder.stderr
