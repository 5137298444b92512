"""Describes the machine of a benchmark: processor, compute and memory rates, load; and locates result files.

    machine.py CORES [cpu|cuda]

measures and prints the rates. This needs torch, so the benchmarks run it in a separate process.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import runs  # noqa: E402

RESULTS = ROOT / "scripts" / "bench" / "results"
NOT_MEASURED = "not measured"
RATES = ("bf16_flops", "fp32_flops", "memory_bytes_per_s")
# CPU flags that affect compute speed; the last three are for ARM.
FLAGS = ("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16",
         "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "sve", "bf16")


def processor(cpuinfo=None):
    """Returns name, family, model and relevant flags from the text of /proc/cpuinfo."""
    fields = {}
    for line in (pathlib.Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo).splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {"name": fields.get("model name") or platform.processor() or platform.machine(),
            "family": fields.get("cpu family", NOT_MEASURED), "model": fields.get("model", NOT_MEASURED),
            "flags": [flag for flag in FLAGS if flag in flags]}


def folder_name(kind):
    """Returns the subfolder of results for a kind of processor, such as amd-epyc-family-26-model-2."""
    name = re.sub(r"\((R|TM|r|tm)\)|@.*| CPU\b", "", kind["name"])
    words = re.findall(r"[a-z0-9]+", name.lower())
    for key in ("family", "model"):
        if kind[key] != NOT_MEASURED:
            words += [key, kind[key]]
    return "-".join(words)


def commit(binary):
    """Returns the commit that the binary was built from, according to its --version."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{binary} --version failed: {error}; build it with ./scripts/train, or pass --binary")
    return re.search(r"commit ([^,]+)", done.stdout)[1]


def rates(cores, device="cpu"):
    """Returns FLOP/s and bytes/s of `cores` cores together, or of one GPU, measured by a Python with torch."""
    own = importlib.util.find_spec("torch") is not None
    python = sys.executable if own else ROOT / ".venv" / "bin" / "python3"
    try:
        done = subprocess.run([python, __file__, str(cores), device], capture_output=True, text=True, check=True,
                              env={**os.environ, "OMP_NUM_THREADS": str(cores)})
        return json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError):
        print("processor rates not measured: found no Python with torch", file=sys.stderr)
        return dict.fromkeys(RATES, NOT_MEASURED)


class Machine:
    """Metadata of a result file. Create it before the measurement starts."""

    SAMPLE_EVERY_S = 2

    def __init__(self, binary, cores=os.cpu_count(), device="cpu"):
        self.commit, self.cores, self.before, self.samples = commit(binary), cores, os.getloadavg(), []
        self.rates = rates(cores, device)
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self):
        while True:
            self.samples.append(os.getloadavg()[0])
            time.sleep(self.SAMPLE_EVERY_S)

    def describe(self):
        """Returns the metadata. Load averages are for 1, 5 and 15 minutes before the measurement, and 1-minute samples during
        it; those samples include the benchmark's own processes."""
        load = {"before": self.before, "during": spread(list(self.samples)), "after": os.getloadavg()}
        return {"commit": self.commit, "date": time.strftime("%Y-%m-%d"), "python": platform.python_version(),
                "machine": {"processor": processor(), "cores": os.cpu_count(), "cores_used": self.cores, "rates": self.rates,
                            "load_average": load}}


def timed(command):
    """Runs a command, which must succeed. Returns its wall time in seconds and its standard output."""
    begin = time.monotonic()
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True)
    return time.monotonic() - begin, done.stdout


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "count": len(values)}


def place(name):
    """Returns the path of the committed result `name` for this kind of processor."""
    return RESULTS / folder_name(processor()) / name


def add_output(parser, name):
    """Adds the flag --output; without a value, it is the path of the committed result for this kind of processor."""
    parser.add_argument("--output", type=pathlib.Path, nargs="?", const=place(name), metavar="FILE",
                        help=f"result file (without FILE: scripts/bench/results/PROCESSOR/{name})")


def parser_of(description, name):
    """Returns a parser with the flags that all benchmarks share: --binary, and --output for the result `name`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "bin" / "mnist-train")
    add_output(parser, name)
    return parser


def records(run, event):
    """Returns a run folder's records of `event`, without an incomplete last line."""
    return [record for record in runs.RunFolder(run).lines() if record["event"] == event]


def write(output, result):
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=2) + "\n")


def finish(output, result):
    """Prints the result, and writes it to the file of --output."""
    print(json.dumps(result, indent=2))
    write(output, result)


def best_rate(work, run, wait, seconds=0.3):
    """Returns the best rate of `work` per call of `run` within `seconds`."""
    run()
    wait()
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        wait()
        best = max(best, work / (time.perf_counter() - begin))
    return best


def measure_rates(cores, device):
    """Measures the rates of matrix products and memory. Matrix products: the faster of torch.mm and 1x1 convolutions, which use
    a different library on CPUs (fp32 on a GPU: TF32, as convolutions do there). Memory: copies larger than the caches."""
    import torch

    torch.set_num_threads(cores)
    torch.backends.cuda.matmul.allow_tf32 = True
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    measured = {}
    for name, dtype in (("bf16_flops", torch.bfloat16), ("fp32_flops", torch.float32)):
        measured[name] = 0.0
        for size in (8192,) if device == "cuda" else (512, 1024, 2048):
            left, right, out = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
            images = left.view(16, size // 16, 1, size).permute(0, 3, 1, 2)  # channels last; smaller images use torch.mm's library
            kernels = right.view(size, size, 1, 1)
            for run in (lambda: torch.mm(left, right, out=out), lambda: torch.conv2d(images, kernels)):
                measured[name] = max(measured[name], best_rate(2 * size**3, run, wait))
    values = torch.ones(2**26, device=device)
    copy = torch.zeros_like(values)
    measured["memory_bytes_per_s"] = best_rate(2 * 4 * 2**26, lambda: copy.copy_(values), wait)
    return measured


if __name__ == "__main__":
    print(json.dumps(measure_rates(int(sys.argv[1]), (sys.argv[2:] or ["cpu"])[0])))
