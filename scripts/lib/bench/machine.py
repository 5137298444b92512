"""On what a benchmark ran, and how fast that can compute."""

import os
import pathlib
import platform
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def commit():
    """Of the repository, or that of which a bundle was made."""
    bundle = ROOT / "BUNDLE.txt"
    if bundle.exists():
        return bundle.read_text().split("commit ", 1)[1].split(",", 1)[0]
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def describe():
    """What every result file says about where it comes from; the load is that of the last 15 minutes."""
    return {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "processor": processor(), "cores": os.cpu_count(),
            "load_before": os.getloadavg()[2], "python": platform.python_version()}


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "count": len(values)}


def matmul_flops(device, dtype, seconds=0.5):
    """The best rate of one thread of a CPU, or of a GPU (fp32: as TF32, which convolutions take there), in FLOP/s."""
    import torch

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    size = 8192 if device == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, end = 0.0, time.perf_counter() + seconds
    for _ in range(3):
        torch.mm(left, right)
    while time.perf_counter() < end:
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(4):
            torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()
        best = max(best, 4 * 2 * size**3 / (time.perf_counter() - begin))
    return best
