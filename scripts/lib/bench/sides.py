"""How each side of the benchmark is started, and its figures: seconds, samples, bytes."""

import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import runs  # noqa: E402

PEERS = ROOT / "scripts" / "bench" / "peers"
FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def data_folder(dataset):
    for root in (os.environ.get("MNIST_TRAIN_DATA"), ROOT / "third_party"):
        if root and (Path(root) / dataset).is_dir():
            return Path(root) / dataset
    sys.exit(f"no {dataset}: `mnist-train fetch {dataset} --to DIR/{dataset}` and set MNIST_TRAIN_DATA=DIR")


def prepare_for_torchvision(folder, dataset):
    raw = Path(folder) / FOLDERS[dataset] / "raw"
    if raw.exists():
        return
    raw.mkdir(parents=True)
    for file in data_folder(dataset).glob("*.gz"):
        with gzip.open(file) as compressed, open(raw / file.stem, "wb") as plain:
            shutil.copyfileobj(compressed, plain)


def run_timed(command, device):
    """Runs a command; gives its wall seconds, start time and output."""
    variables = {**runs.environment(), "OMP_NUM_THREADS": "1"}
    if device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    begin_wall, begin = time.time(), time.perf_counter()
    done = subprocess.run(list(map(str, command)), env=variables, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return seconds, begin_wall, done.stdout


def time_to(goal, events, begin_wall):
    """From the command's start to the end of the first epoch that reached the goal; none if no epoch did."""
    return next((event["time"] - begin_wall for event in events if event["test_accuracy"] >= goal), None)


def figures(case, seconds, begin_wall, epochs, startup, peak):
    return {"wall_seconds": seconds, "epoch_seconds": statistics.median(epoch["train_seconds"] for epoch in epochs),
            "startup_seconds": startup, "seconds_to_goal": time_to(case.goal, epochs, begin_wall),
            "test_accuracy": epochs[-1]["test_accuracy"], "peak_memory_mb": peak / 1e6}


def mnist_train(case, options, precision, folder):
    output = Path(tempfile.mkdtemp(dir=folder)) / "run"
    command = [options.binary, "--config", ROOT / "configs" / case.config, "--quiet", "--output", output,
               "--nproc-per-node", options.processes]
    data = data_folder(case.dataset).parent
    settings = [f"epochs={options.epochs}", f"precision={precision}", f"device={options.device}", f"data.root={data}", *case.settings]
    if options.device == "cpu":
        settings.append("launch.threads_per_process=1")
    if case.limit(options):
        settings.append(f"data.limit_train={case.limit(options)}")
    for setting in settings:
        command += ["--set", setting]
    seconds, begin_wall, _ = run_timed(command, options.device)
    summary = json.loads((output / "summary.json").read_text())
    events = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    epochs = [event for event in events if event["event"] == "epoch"]
    shutil.rmtree(output)
    return figures(case, seconds, begin_wall, epochs, summary["startup_seconds"], summary["peak_memory_bytes"])


def python(script, starter, case, options, folder):
    prepare_for_torchvision(folder, case.dataset)
    command = [sys.executable, *starter, PEERS / script, "--data", folder, "--epochs", options.epochs,
               "--processes", options.processes, *case.recipe(options)]
    seconds, begin_wall, output = run_timed(command, options.device)
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    first, end = (next(event for event in events if event["event"] == name) for name in ("first_step", "end"))
    epochs = [event for event in events if event["event"] == "epoch"]
    return figures(case, seconds, begin_wall, epochs, first["time"] - begin_wall, end["peak_memory_bytes"])


def python_ddp(case, options, folder):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", options.processes]
    return python("ddp.py", torchrun, case, options, folder)


def best_python(case, options, folder):
    return python("best.py", [], case, options, folder)
