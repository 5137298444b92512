"""Runs mnist-train and reads its run folder, for scripts/smoke and scripts/gpu_check. Needs only the standard library."""

import array
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # the repository, or an unpacked bundle

# 20 steps per epoch; every key that affects the results is set.
SMALL = {
    "epochs": 2,
    "batch_size": 128,
    "learning_rate": 0.01,
    "sgd_momentum": 0.9,
    "seed": 1,
    "deterministic": True,
    "precision": "fp32",
    "log_interval": 1,
    "data": {"dataset": "mnist", "limit_train": 2560, "limit_test": 1000},
    "launch": {"max_restarts": 0, "hang_timeout_s": 60},
}


def programs_folder():
    """Returns the folder of MNIST_TRAIN_BINARY if set, else bin/ of a bundle or build/bin of the repository."""
    if "MNIST_TRAIN_BINARY" in os.environ:
        return Path(os.environ["MNIST_TRAIN_BINARY"]).parent
    for folder in (ROOT / "bin", ROOT / "build" / "bin"):
        if (folder / "mnist-train").exists():
            return folder
    sys.exit(f"no mnist-train in {ROOT}/bin or {ROOT}/build/bin; run scripts/setup first")


def is_bundle():
    """Returns whether this is an unpacked bundle, like is_bundle in scripts/lib/common.sh."""
    return (ROOT / "bin" / "mnist-train").exists()


def environment():
    """Returns the environment plus the data folder and, for a bundle, this Python's LibTorch unless LD_LIBRARY_PATH has one."""
    variables = dict(os.environ)
    variables.setdefault("MNIST_TRAIN_DATA", str(ROOT / "third_party"))
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if is_bundle() and not any((Path(folder) / "libtorch_cpu.so").exists() for folder in folders):
        spec = importlib.util.find_spec("torch")
        if not spec or not spec.submodule_search_locations:
            sys.exit("LibTorch not found; add its lib folder to LD_LIBRARY_PATH, or use a Python with torch")
        variables["LD_LIBRARY_PATH"] = ":".join([str(Path(spec.submodule_search_locations[0]) / "lib"), *folders])
    return variables


def gpu_names():
    """Returns the GPU names that nvidia-smi lists, but at most as many as there are in CUDA_VISIBLE_DEVICES."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    result = subprocess.run(query, capture_output=True, text=True, check=False)
    names = result.stdout.splitlines() if result.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if visible is None else names[: len([index for index in visible.split(",") if index])]


def merged(base, changes):
    result = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merged(base[key], value) if nested else value
    return result


class RunFolder:
    """Reads the output files of a run."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def read_json(self, name):
        return json.loads((self.folder / name).read_text())

    def summary(self):
        return self.read_json("summary.json")

    def lines(self):
        """Returns the records of metrics.jsonl so far, without an incomplete last line."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def steps(self):
        return [line for line in self.lines() if line["event"] == "step"]

    def epochs(self):
        return [line for line in self.lines() if line["event"] == "epoch"]


class Run(RunFolder):
    """One run of mnist-train in its own run folder."""

    def __init__(self, folder, config, processes):
        super().__init__(folder)
        self.config_path = self.folder.with_suffix(".json")
        self.config_path.write_text(json.dumps(config, indent=2))
        self.processes = processes

    def command(self, *flags):
        return [
            str(programs_folder() / "mnist-train"),
            *("--config", str(self.config_path), "--output", str(self.folder)),
            *("--nproc-per-node", str(self.processes), *flags),
        ]

    def finish(self, *flags, expected_code=0, timeout_s=300):
        result = subprocess.run(
            self.command(*flags), env=environment(), capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if result.returncode != expected_code:
            raise RuntimeError(f"{self.folder.name}: exit {result.returncode}\n{result.stderr}")
        return self

    def interrupt_after(self, step):
        """Starts the run and sends SIGTERM after `step` steps; the run must save a checkpoint and exit 143."""
        with open(self.folder.with_suffix(".log"), "w+", encoding="utf-8") as log:
            with subprocess.Popen(self.command(), env=environment(), stderr=log, stdout=log) as process:
                while process.poll() is None and len(self.steps()) < step:
                    time.sleep(0.01)
                process.send_signal(signal.SIGTERM)
                code = process.wait()
            if code != 143:
                log.seek(0)
                raise RuntimeError(f"{self.folder.name}: exit {code} on SIGTERM, not 143\n{log.read()}")
        return self

    def weights(self):
        """Returns one array of floats per tensor of model.pt, in file order."""
        tensors = []
        with zipfile.ZipFile(self.folder / "model.pt") as archive:
            root = archive.namelist()[0].split("/")[0]
            while f"{root}/data/{len(tensors)}" in archive.namelist():
                tensors.append(array.array("f", archive.read(f"{root}/data/{len(tensors)}")))
        return tensors


def relative_difference(run, reference):
    """Returns the maximum of |a - b| / |b| over all tensors. Uses Euclidean norms, because rounding may flip the sign of a ReLU
    input and change single elements."""
    pairs = zip(run.weights(), reference.weights(), strict=True)
    return max(math.dist(one, other) / math.hypot(*other) for one, other in pairs)
