"""The program's own kernels on mock GPUs: compilation, use, and the fallback to LibTorch."""

import pytest
from fake_gpus import ON_GPU, fake_gpus, needs_fake_gpus, reports
from support import train

pytestmark = needs_fake_gpus

CHANGES = ON_GPU | {"precision": "bf16", "epochs": 1}
OWN = ["softmax_loss", "optimizer_update", "relu_max_pool", "gather_batch", "batch_norm", "linear_activation",
       "depthwise_convolution"]


def run(folder, changes=None, gpus=1, **variables):
    folder.mkdir(exist_ok=True)
    return train(folder, CHANGES | (changes or {}), processes=gpus, output="run",
                 variables=fake_gpus(gpus, report=folder / "report") | variables)


def launches(folder):
    return sum(report["kernels"].get("softmax_loss_bf16", 0) for report in reports(folder / "report"))


def test_own_kernels_are_checked_used_and_computed(tmp_path):
    folder = run(tmp_path)
    summary = folder.summary()
    assert summary["gpu_kernels"] == OWN and summary["rejected_gpu_kernels"] == {}
    assert launches(tmp_path) > 2  # and not only to check it
    # All products are 0 on a mock, so all classes are as likely.
    assert [line["train_loss"] for line in folder.epochs()] == [pytest.approx(2.302585, abs=1e-5)]


def test_they_are_compiled_once(tmp_path):
    cache = tmp_path / "cache"
    run(tmp_path / "first", XDG_CACHE_HOME=cache)
    (compiled,) = (cache / "mnist-train" / "kernels").iterdir()
    before = compiled.stat()
    run(tmp_path / "second", XDG_CACHE_HOME=cache, FAKE_GPU_NVRTC_FAILS_DEVICE=0)
    assert compiled.stat().st_mtime_ns == before.st_mtime_ns
    compiled.write_bytes(compiled.read_bytes()[:1000])  # of no use: compiled again
    assert run(tmp_path / "third", XDG_CACHE_HOME=cache).summary()["gpu_kernels"] == OWN
    assert compiled.stat().st_size == before.st_size


@pytest.mark.parametrize("why", ["off", "no compiler", "a kernel differs", "another rank cannot"])
def test_if_they_cannot_be_used_libtorch_computes_and_the_run_says_so(tmp_path, why):
    changes, variables, gpus = {}, {}, 1
    if why == "off":
        changes, reason = {"gpu_kernels": "off"}, 'gpu_kernels is "off"'
    elif why == "no compiler":
        variables = {"XDG_CACHE_HOME": tmp_path / "cache", "FAKE_GPU_NVRTC_FAILS_DEVICE": 0}
        reason = "FAKE_GPU_NVRTC_FAILS_DEVICE is set"
    elif why == "a kernel differs":
        variables, reason = {"FAKE_GPU_IDLE_KERNEL": "softmax_loss_bf16"}, "differ"
    else:
        gpus, reason = 2, "another rank cannot use it"
        variables = {"XDG_CACHE_HOME": tmp_path / "cache", "FAKE_GPU_NVRTC_FAILS_DEVICE": 1}
    folder = run(tmp_path, changes, gpus, **variables)
    summary = folder.summary()
    assert summary["status"] == "finished"
    rejected = OWN[:1] if why == "a kernel differs" else OWN
    assert summary["gpu_kernels"] == [name for name in OWN if name not in rejected]
    assert all(reason in text for text in summary["rejected_gpu_kernels"].values())
    assert set(summary["rejected_gpu_kernels"]) == set(rejected)
    assert launches(tmp_path) <= 2  # to check it
    assert "softmax_loss: computed by LibTorch's operations" in folder.stderr
