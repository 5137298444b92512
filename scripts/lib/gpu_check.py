#!/usr/bin/env python3
"""Everything that only a machine with a GPU can show: the doctor, the [gpu] tests, the smoke test, parity with the CPU, timings.

usage: scripts/gpu_check [--output FILE]

Runs from a built repository, or from an unpacked bundle on a node that has nothing but PyTorch. Writes what it found as
JSON (default: scripts/bench/results/gpu-<model>.json) and exits 0 if every check passed.
"""

import argparse
import importlib.util
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
import runs  # noqa: E402

WEIGHTS_TOLERANCE = 1e-4  # after 20 steps in fp32, relative to a tensor's largest
ACCURACY_TOLERANCE = 0.004  # after 2 epochs
ACCURACY_GOAL = 0.987  # of configs/mnist.json after 10 epochs


class Checks:
    def __init__(self, folder):
        self.folder = folder
        self.results = []
        self.timings = {}

    def report(self, name, ok, detail):
        self.results.append({"check": name, "ok": bool(ok), "detail": detail})
        print(f"{'ok    ' if ok else 'FAILED'}  {name}: {detail}", flush=True)

    def command(self, name, *command):
        """A command that succeeds or fails as a whole; its last lines tell."""
        result = subprocess.run(
            command, env=runs.environment(), cwd=runs.ROOT, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        lines = [line for line in result.stdout.splitlines() if line.strip()]
        ok = result.returncode == 0 and lines
        self.report(name, ok, lines[-1] if ok else "\n".join(lines[-40:]) or f"exit {result.returncode}")

    def train(self, name, config, processes=1, **changes):
        return runs.Run(self.folder / name, runs.merged(config, changes), processes).finish()

    def time(self, name, run):
        summary = run.summary()
        figures = {key: summary[key] for key in ("startup_seconds", "train_seconds", "test_seconds", "wall_seconds")}
        figures["epoch_train_seconds"] = [line["train_seconds"] for line in run.epochs()]
        figures |= {key: summary[key] for key in ("samples_per_second", "world_size", "backend", "peak_memory_bytes")}
        figures["accuracies"] = run.read_json("accuracies.json")
        self.timings[name] = figures
        print(f"        {name}: {figures['samples_per_second']:,.0f} samples/s", flush=True)


def check_gpu_tests(checks):
    checks.command("[gpu] tests", str(runs.programs_folder() / "mnist-train-tests"), "[gpu]")


def check_doctor(checks):
    checks.command("doctor", str(runs.programs_folder() / "mnist-train"), "doctor")


def check_smoke(checks, gpus):
    smoke = str(Path(__file__).with_name("smoke.py"))
    checks.command("smoke, one GPU", sys.executable, smoke, "--gpus", "1")
    if gpus > 1:
        checks.command("smoke, two GPUs over NCCL", sys.executable, smoke, "--gpus", "2")
    else:
        checks.command("smoke, two processes share the GPU", sys.executable, smoke, "--gpus", "2", "--share-gpu")


def check_parity(checks):
    cpu = checks.train("cpu-steps", runs.SMALL, max_steps=20, device="cpu")
    gpu = checks.train("gpu-steps", runs.SMALL, max_steps=20, device="cuda")
    difference = runs.relative_difference(gpu, cpu)
    checks.report(
        "CPU-GPU parity of weights",
        difference <= WEIGHTS_TOLERANCE,
        f"{difference:.1e} after 20 steps (at most {WEIGHTS_TOLERANCE:.0e})",
    )


def check_training(checks, gpus):
    config = json.loads((runs.ROOT / "configs" / "mnist.json").read_text())
    config["precision"] = "fp32"
    cpu = checks.train("cpu", config, 2, epochs=2, device="cpu")
    gpu = checks.train("gpu", config, device="cuda")
    checks.time("2 CPU processes, fp32", cpu)
    checks.time("1 GPU, fp32", gpu)
    if gpus > 1:
        checks.time(f"{gpus} GPUs, fp32, NCCL", checks.train("gpus", config, gpus, device="cuda", backend="nccl"))
    accuracies = gpu.read_json("accuracies.json")
    differences = [abs(a - b) for a, b in zip(accuracies, cpu.read_json("accuracies.json"))]
    checks.report(
        "CPU-GPU parity of accuracies",
        max(differences) <= ACCURACY_TOLERANCE,
        f"{max(differences):.4f} over 2 epochs (at most {ACCURACY_TOLERANCE})",
    )
    checks.report("configs/mnist.json", accuracies[-1] >= ACCURACY_GOAL, f"{accuracies[-1]} (at least {ACCURACY_GOAL})")


def check_against_python(checks, output):
    """scripts/bench/run on one GPU, with the sides that this Python can run; its result lies beside this one's."""
    missing = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
    if "torch" in missing:
        checks.report("against Python", True, "left out: this Python has no torch")
        return
    sides = "bf16,fp32,best" + ("" if missing else ",ddp")
    result = output.with_name(f"{output.stem}-python.json")
    checks.command("against Python", sys.executable, str(runs.ROOT / "scripts" / "bench" / "run"), "net", "lenet", "mlp",
                   "--device", "cuda", "--processes", "1", "--sides", sides, "--binary", str(runs.programs_folder() / "mnist-train"),
                   "--output", str(result))


def driver_version():
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]


def describe_machine(gpus):
    version = [str(runs.programs_folder() / "mnist-train"), "--version"]
    result = subprocess.run(version, capture_output=True, text=True, check=False, env=runs.environment())
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpus": gpus,
        "driver": driver_version(),
        "version": result.stdout.strip(),
        "system": platform.platform(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", metavar="FILE", help="where the result goes")
    arguments = parser.parse_args()
    gpus = runs.gpu_names()
    if not gpus:
        sys.exit("gpu_check: nvidia-smi shows no GPU here")
    model = re.sub(r"[^a-z0-9]+", "-", gpus[0].lower()).strip("-")
    output = Path(arguments.output or runs.ROOT / "scripts" / "bench" / "results" / f"gpu-{model}.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mnist-train-gpu-") as folder:
        checks = Checks(Path(folder))
        parts = (
            lambda: check_doctor(checks),
            lambda: check_gpu_tests(checks),
            lambda: check_smoke(checks, len(gpus)),
            lambda: check_parity(checks),
            lambda: check_training(checks, len(gpus)),
            lambda: check_against_python(checks, output),
        )
        for part in parts:
            try:
                part()
            except (RuntimeError, OSError, KeyError, ValueError) as error:
                checks.report("a run", False, str(error))
    result = describe_machine(gpus) | {"checks": checks.results, "timings": checks.timings}
    output.write_text(json.dumps(result, indent=2) + "\n")
    failed = sum(not check["ok"] for check in checks.results)
    print(f"gpu_check: {f'{failed} checks failed' if failed else 'passed'}; {output}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
