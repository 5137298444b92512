"""Runs the binary on mock GPUs and reads their reports. See tests/support/fake_gpu/README.md."""

import functools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from support import BINARY, REPOSITORY

WITH_FAKE_GPUS = REPOSITORY / "tests" / "support" / "fake_gpu" / "with_fake_gpus"
LIBRARIES = Path(os.environ.get("MNIST_TRAIN_FAKE_GPU_LIBRARIES") or Path(BINARY).resolve().parents[1] / "lib" / "fake_gpu")

# Changes to support.SMALL, which is for CPUs. Results are meaningless here, so they are not compared. An epoch has the same
# number of steps, but smaller batches, because the emulated kernels are slow.
ON_GPU = {"device": "cuda", "deterministic": False, "batch_size": 16, "data": {"limit_train": 320, "limit_test": 100}}
RESNET18 = {"model": {"name": "resnet18"}, "batch_size": 8, "data": {"limit_train": 64, "limit_test": 50}}
TINY = {"model": {"name": "mlp", "hidden": [16]}}  # steps of a millisecond


def missing_part():
    if not (Path(BINARY).resolve().parent / "libmnist-train-cuda.so").exists():
        return "this build has no CUDA module"
    if not (LIBRARIES / "libfake_gpu.so").exists():
        return f"this build has no mock GPUs in {LIBRARIES}"
    return None


needs_fake_gpus = pytest.mark.skipif(missing_part() is not None, reason=str(missing_part()))


def fake_gpus(count=1, **settings):
    """Returns the environment variables of a machine with `count` mock GPUs, for `run`, `start` and `train` of support.py.
    fake_gpus(kernel_us=20) sets FAKE_GPU_KERNEL_US."""
    named = {f"FAKE_GPU_{name.upper()}": value for name, value in settings.items()}
    # Compiling kernels takes seconds, so all runs share the kernel cache.
    return loading_variables() | {"FAKE_GPU_COUNT": count, "XDG_CACHE_HOME": LIBRARIES / "cache"} | named


@functools.cache
def loading_variables():
    """Returns the variables that make a process load the mock libraries, as with_fake_gpus does."""
    printed = subprocess.run([WITH_FAKE_GPUS, "env", "-0"], check=True, capture_output=True, text=True,
                             env=os.environ | {"MNIST_TRAIN_FAKE_GPU_LIBRARIES": str(LIBRARIES)}).stdout
    variables = dict(entry.split("=", 1) for entry in printed.split("\0") if entry)
    return {name: variables[name] for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH")}


def reports(path):
    """Returns the reports that fake_gpus(report=path) requests, one per process that exited normally, sorted by pid."""
    files = sorted(path.parent.glob(f"{path.name}.*"), key=lambda file: int(file.suffix[1:]))
    return [json.loads(file.read_text()) for file in files]


def devices_of_ranks(run_folder):
    """Returns the device that each rank passed to NCCL, by rank."""
    return devices_in(log.read_text() for log in (run_folder.path / "logs").glob("rank-*.log"))


def devices_in(texts):
    """Returns the device that each rank passed to NCCL, by rank, from logs or standard error."""
    return {int(rank): int(device) for text in texts for rank, device in re.findall(r"NCCL: rank (\d+) of \d+ on device (\d+)", text)}
