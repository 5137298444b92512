"""Runs each side of the benchmark and returns its results: seconds, samples, bytes."""

import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from machine import ROOT, records, runs

PEERS = ROOT / "scripts" / "bench" / "peers"
FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def data_folder(dataset):
    for root in (os.environ.get("MNIST_TRAIN_DATA"), ROOT / "third_party"):
        if root and (Path(root) / dataset).is_dir():
            return Path(root) / dataset
    sys.exit(f"{dataset} not found: run `mnist-train fetch {dataset} --to DIR/{dataset}` and set MNIST_TRAIN_DATA=DIR")


def prepare_for_torchvision(folder, dataset):
    raw = Path(folder) / FOLDERS[dataset] / "raw"
    if raw.exists():
        return
    raw.mkdir(parents=True)
    for file in data_folder(dataset).glob("*.gz"):
        with gzip.open(file) as compressed, open(raw / file.stem, "wb") as plain:
            shutil.copyfileobj(compressed, plain)


@dataclass(frozen=True)
class Run:
    """Results of one run of a side."""

    wall_seconds: float
    epochs: list
    startup_seconds: float
    peak_memory_bytes: int
    compile_seconds: float | None = None  # not included in the epochs

    def figures(self):
        return {"wall_seconds": self.wall_seconds, "epoch_seconds": statistics.median(epoch["train_seconds"] for epoch in self.epochs),
                "startup_seconds": self.startup_seconds, "compile_seconds": self.compile_seconds,
                "test_accuracy": self.epochs[-1]["test_accuracy"],
                "peak_memory_mb": self.peak_memory_bytes / 1e6}

    def losses(self):
        return [epoch["train_loss"] for epoch in self.epochs]


def run_timed(command, device, threads=1, variables=()):
    """Runs a command with `threads` threads (None: its default). Returns the wall time in seconds, the start time and the output."""
    environment = {**runs.environment(), **({"OMP_NUM_THREADS": str(threads)} if threads else {}), **dict(variables)}
    confine = None
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
        if threads and threads > 1:  # some peers ignore OMP_NUM_THREADS
            cores = sorted(os.sched_getaffinity(0))[:threads]
            confine = lambda: os.sched_setaffinity(0, cores)  # noqa: E731
    begin_wall, begin = time.time(), time.perf_counter()
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False, preexec_fn=confine)
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return seconds, begin_wall, done.stdout


def mnist_train(case, options, precision, folder):
    output = Path(tempfile.mkdtemp(dir=folder)) / "run"
    command = [options.binary, "--config", ROOT / case.config, "--quiet", "--output", output]
    data = data_folder(case.dataset).parent
    settings = [f"epochs={options.epochs}", f"batch_size={case.batch_size}", f"learning_rate={case.learning_rate}",
                f"precision={precision}", f"device={options.device}", f"data.root={data}", *case.settings]
    if not options.automatic:
        settings.append(f"launch.processes_per_node={options.processes}")
        settings += [f"launch.threads_per_process={options.threads}"] if options.device == "cpu" else []
    if case.limit(options):
        settings.append(f"data.limit_train={case.limit(options)}")
    if case.test_limit(options):
        settings.append(f"data.limit_test={case.test_limit(options)}")
    for setting in settings:
        command += ["--set", setting]
    seconds, _, _ = run_timed(command, options.device, None if options.automatic else 1)
    summary = json.loads((output / "summary.json").read_text())
    epochs = records(output, "epoch")
    shutil.rmtree(output)
    return Run(seconds, epochs, summary["startup_seconds"], summary["peak_memory_bytes"])


def peer(script, case, options, precision, folder, starter=(sys.executable,), threads=1, more=()):
    """Runs a script of scripts/bench/peers with an empty cache of compiled code."""
    prepare_for_torchvision(folder, case.dataset)
    command = [*starter, PEERS / script, "--data", folder, "--epochs", options.epochs, "--processes", options.processes,
               *case.recipe(options, precision), *more]
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        variables = {"TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": "1"}
        seconds, begin_wall, output = run_timed(command, options.device, threads, variables)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    first, end, compiled = (next((event for event in events if event["event"] == name), None) for name in ("first_step", "end", "compiled"))
    epochs = [event for event in events if event["event"] == "epoch"]
    return Run(seconds, epochs, first["time"] - begin_wall, end["peak_memory_bytes"], compiled and compiled["seconds"])


def by_torchrun(script):
    def run(case, options, precision, folder):
        starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
                   "--nproc-per-node", options.processes]
        return peer(script, case, options, precision, folder, starter)
    return run


def best_python(case, options, precision, folder):
    return peer("best.py", case, options, precision, folder)


def inductor(case, options, precision, folder):
    return peer("inductor.py", case, options, precision, folder, threads=options.processes)


def jax_jit(case, options, precision, folder):
    """Runs the JAX peer with the initial weights of the PyTorch peers."""
    import numpy
    import recipe
    import torch

    weights = Path(folder) / f"{case.model}.npz"
    if not weights.exists():
        torch.manual_seed(1)
        numpy.savez(weights, **{name: value.numpy() for name, value in recipe.make_model(case).state_dict().items()})
    return peer("jax_jit.py", case, options, precision, folder, (jax_python(),), options.processes, ("--weights", weights))


def jax_python():
    return Path(os.environ.get("MNIST_TRAIN_JAX_PYTHON", ROOT / ".venv" / "jax" / "bin" / "python3"))


def set_up_jax():
    """Installs the pinned JAX into a separate venv, unless it exists or MNIST_TRAIN_JAX_PYTHON is set."""
    if "MNIST_TRAIN_JAX_PYTHON" not in os.environ and not runs.is_bundle():
        subprocess.run(["bash", "-euc", 'source scripts/lib/common.sh; source scripts/lib/install.sh; set_up_jax', "scripts/bench/run"],
                       cwd=ROOT, check=True)
    if not jax_python().exists():
        sys.exit(f"the peer jax needs {jax_python()}, or MNIST_TRAIN_JAX_PYTHON with a Python that imports jax")


# Name in --peers: (name in tables, function that runs it).
PEERS_BY_NAME = {
    "ours": ("mnist-train", mnist_train),
    "ddp": ("Python, DistributedDataParallel", by_torchrun("ddp.py")),
    "best": ("Python, the best we could write", best_python),
    "jax": ("JAX, jit, one process", jax_jit),
    "inductor": ("torch.compile, one process", inductor),
    "inductor_ddp": ("torch.compile, DistributedDataParallel", by_torchrun("inductor.py")),
}
JAX_CASES = ("net", "lenet", "mlp")
