"""Tests the custom kernels on mock GPUs: compilation, use, and training without them."""

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


def test_custom_kernels_are_used_and_compute_the_loss(tmp_path):
    folder = run(tmp_path)
    assert launches(tmp_path) > 0
    # All matrix products are 0 on a mock GPU, so all classes are equally likely.
    assert [line["train_loss"] for line in folder.epochs()] == [pytest.approx(2.302585, abs=1e-5)]


def test_kernels_are_compiled_once_and_a_failure_suggests_disabling_them(tmp_path):
    run(tmp_path / "first")  # fills the cache that all tests share, unless an earlier test has
    cache = shutil.copytree(LIBRARIES / "cache", tmp_path / "cache")
    without_compiler = {"XDG_CACHE_HOME": cache, "FAKE_GPU_NVRTC_FAILS_DEVICE": 0}
    run(tmp_path / "second", **without_compiler)
    assert launches(tmp_path / "second") > 0
    for path in (cache / "mnist-train" / "kernels").iterdir():
        path.write_bytes(path.read_bytes()[:1000])  # corrupt, so it is compiled again
    failed = run(tmp_path / "third", expect=1, **without_compiler)
    assert "FAKE_GPU_NVRTC_FAILS_DEVICE is set" in failed.stderr and 'set gpu_kernels to "off"' in failed.stderr


def test_a_run_finishes_without_custom_kernels(tmp_path):
    assert run(tmp_path, {"gpu_kernels": "off"}).summary()["status"] == "finished"
    assert launches(tmp_path) == 0
