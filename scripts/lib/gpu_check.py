#!/usr/bin/env python3
"""Runs all checks that need a GPU: doctor, the [gpu] tests, the smoke test, parity with the CPU, timings.

usage: scripts/gpu_check [--output FILE] [--parts doctor,nccl,tests,parity,smoke,features,commands,sanitizer,speed,training,profile]

Runs from a built repository, or from an unpacked bundle on a node that has only PyTorch. After each part, it writes the results
as JSON (default: scripts/bench/results/gpu-<model>.json) and the commands' output to <same name>-logs.tar.gz. Exits 0 if
all checks passed. To save GPU time, parts without timings run concurrently, and each command is stopped after two minutes.
"""

import argparse
import csv
import functools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
import runs  # noqa: E402

WEIGHTS_TOLERANCE = 1e-3  # after 20 steps in fp32, relative to a tensor's norm; see smoke.py
ACCURACY_TOLERANCE = 0.004  # after 2 epochs
ACCURACY_GOAL = 0.987  # for configs/mnist.json after 10 epochs
SHORT = {"max_steps": 40, "deterministic": False}  # changes to runs.SMALL
COMMAND_S = 120
FEW_THREADS = {"OMP_NUM_THREADS": "2"}  # for commands that run concurrently
# (Launches to skip, launches to profile), so that the latter include the last one of the first step and the whole second
# step; few, since each takes Nsight Compute 0.2 s.
PROFILED_LAUNCHES = {"net": (38, 50), "resnet18": (180, 200)}


def program(name="mnist-train"):
    return str(runs.programs_folder() / name)


def file_name(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class Checks:
    def __init__(self, folder, gpus, output):
        self.folder, self.gpus, self.output = folder, gpus, output
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.lock = threading.Lock()
        self.results = []
        self.timings = {}
        self.profiles = {}

    def report(self, name, ok, detail):
        with self.lock:
            self.results.append({"check": name, "ok": bool(ok), "detail": detail})
            print(f"{'ok    ' if ok else 'FAILED'}  {name}: {detail}", flush=True)

    def command(self, name, *command, forbidden=None, variables=None):
        """Runs a command and reports success or failure with the last lines of its output; a log file has the full output."""
        path = self.logs / f"{file_name(name)}.log"
        with open(path, "w", encoding="utf-8") as log:
            # Runs in a new session, so that its descendants can be killed with it.
            with subprocess.Popen(command, env={**runs.environment(), **(variables or {})}, cwd=runs.ROOT, stdout=log,
                                  stderr=subprocess.STDOUT, start_new_session=True) as process:
                try:
                    ended = f"exit {process.wait(COMMAND_S)}"
                except subprocess.TimeoutExpired:
                    ended = f"timed out after {COMMAND_S} s"
                if process.poll() != 0:
                    end_session(process.pid)
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        ok = ended == "exit 0" and lines and not (forbidden and forbidden in text)
        self.report(name, ok, lines[-1][:200] if ok else "\n".join([*lines[-20:], ended]))
        return text if ok else None

    def train(self, name, config, processes=1, **changes):
        run = runs.Run(self.folder / name, runs.merged(config, changes), processes)
        return run.finish(timeout_s=COMMAND_S)

    def time(self, name, run):
        summary = run.summary()
        values = {key: summary[key] for key in ("startup_seconds", "train_seconds", "test_seconds", "wall_seconds")}
        values["epoch_train_seconds"] = [line["train_seconds"] for line in run.epochs()]
        # The first epoch includes kernel selection and graph capture.
        values["second_epoch_seconds"] = (values["epoch_train_seconds"] + [None, None])[1]
        values |= {key: summary[key] for key in ("samples_per_second", "world_size", "backend", "peak_memory_bytes",
                                                 "execution", "precision")}
        values["accuracies"] = run.read_json("accuracies.json")
        self.timings[name] = values
        print(f"        {name}: second epoch {values['second_epoch_seconds']} s", flush=True)


def end_session(leader):
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def together(*calls):
    """Runs all calls concurrently and raises the exception of the first one that failed."""
    with ThreadPoolExecutor(len(calls)) as executor:
        for future in [executor.submit(call) for call in calls]:
            future.result()


def gpu_tests(tags):
    """Returns filters for the test program, one per test case with these tags. Exits if there are none."""
    listed = subprocess.run([program("mnist-train-tests"), tags, "--list-tests"], env=runs.environment(), text=True,
                            capture_output=True, check=False)
    names = re.findall(r"^  (\S.*)$", listed.stdout, re.MULTILINE)  # long names continue on the next line
    if not names:
        sys.exit(f"no tests with the tags {tags}: {listed.stdout}{listed.stderr}")
    return {name: re.sub(r"([,\[\\])", r"\\\1", name) + "*" for name in names}


def check_gpu_tests(checks):
    """Runs each test case in a separate process, so that a device error affects only that case."""
    together(*(functools.partial(checks.command, f"[gpu] {name}", program("mnist-train-tests"), only,
                                 forbidden="no CUDA device", variables=FEW_THREADS)
               for name, only in gpu_tests("[gpu]").items()))


def check_smoke(checks):
    smoke = str(Path(__file__).with_name("smoke.py"))
    checks.command("smoke, one GPU", sys.executable, smoke, "--gpus", "1")
    if checks.gpus > 1:
        checks.command("smoke, two GPUs over NCCL", sys.executable, smoke, "--gpus", "2")
    else:
        checks.command("smoke, two processes share the GPU", sys.executable, smoke, "--gpus", "2", "--share-gpu")


def check_parity(checks):
    with ThreadPoolExecutor() as executor:
        cpu, gpu = executor.map(lambda device: checks.train(f"{device}-steps", runs.SMALL, max_steps=20, device=device), ("cpu", "cuda"))
    difference = runs.relative_difference(gpu, cpu)
    checks.report("CPU-GPU parity of weights", difference <= WEIGHTS_TOLERANCE,
                  f"{difference:.1e} after 20 steps (at most {WEIGHTS_TOLERANCE:.0e})")


def check_training(checks):
    config = json.loads((runs.ROOT / "configs" / "mnist.json").read_text())
    config["precision"] = "fp32"
    config["launch"] = {"max_restarts": 0}
    cpu = checks.train("cpu", config, 2, epochs=2, device="cpu")
    checks.time("2 CPU processes, fp32", cpu)
    for precision in ("bf16", "fp32"):
        for graphs in ("off", "on"):
            gpu = checks.train(f"gpu-{precision}-{graphs}", config, device="cuda", precision=precision, cuda_graphs=graphs)
            checks.time(f"1 GPU, {precision}, cuda_graphs {graphs}", gpu)
    if checks.gpus > 1:
        checks.time(f"{checks.gpus} GPUs, fp32, NCCL", checks.train("gpus", config, checks.gpus, device="cuda", backend="nccl"))
    accuracies = gpu.read_json("accuracies.json")
    differences = [abs(a - b) for a, b in zip(accuracies, cpu.read_json("accuracies.json"))]
    checks.report("CPU-GPU parity of accuracies", max(differences) <= ACCURACY_TOLERANCE,
                  f"{max(differences):.4f} over 2 epochs (at most {ACCURACY_TOLERANCE})")
    checks.report("configs/mnist.json", accuracies[-1] >= ACCURACY_GOAL, f"{accuracies[-1]} (at least {ACCURACY_GOAL})")


def check_two_ranks_of_nccl(checks):
    """Runs two ranks on one GPU, which NCCL allows only if NCCL_HOSTID places them on different hosts."""
    script = ('RANK=0 NCCL_HOSTID=host0 "$@" & first=$!; RANK=1 NCCL_HOSTID=host1 "$@"; second=$?; '
              'wait $first && exit $second')
    config = checks.folder / "nccl.json"
    config.write_text(json.dumps(runs.merged(runs.SMALL, SHORT | {"device": "cuda", "backend": "nccl"})))
    cases = {
        "flat, eager": ["gradient_averaging.strategy=flat", "cuda_graphs=off"],
        "flat, graph": ["gradient_averaging.strategy=flat", "cuda_graphs=on"],
        "bucketed": ["gradient_averaging.strategy=bucketed"],
        "flat, bf16 gradients": ["gradient_averaging.strategy=flat", "gradient_averaging.compression=bf16"],
        "flat, fp16 gradients": ["gradient_averaging.strategy=flat", "gradient_averaging.compression=fp16"],
        "fixed shards": ['deterministic={"shards":4}'],
        "synchronised batch norm": ["model.name=resnet18", "sync_batch_norm=true"],
        "mixup across processes": ['data.augment=[{"name":"mixup","scope":"global"}]'],
    }

    def check(number, name):
        port = str(29500 + number)
        flags = [flag for setting in cases[name] for flag in ("--set", setting)]
        checks.command(f"two NCCL ranks on one GPU: {name}", "bash", "-c", script, "bash",
                       program(), "--config", str(config), "--output",
                       str(checks.folder / f"nccl-{port}"), *flags,
                       variables={"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                                  "MASTER_PORT": port, "NCCL_SOCKET_IFNAME": "lo"})

    together(*(functools.partial(check, number, name) for number, name in enumerate(cases)))


SPEED_CONFIGS = {"net": "mnist", "resnet18": "fashion_mnist_resnet18", "lenet": "gluon_lenet", "mlp": "dali_mlp",
                 "own_network": "own_network"}


def speed_config(model):
    """Returns a model's config, adapted to train on MNIST in bf16."""
    config = json.loads((runs.ROOT / "configs" / f"{SPEED_CONFIGS[model]}.json").read_text())
    config = {key: value for key, value in config.items() if key not in ("data", "launch")}
    return runs.merged(config, {"data": {"dataset": "mnist"}, "launch": {"max_restarts": 0}, "epochs": 3, "device": "cuda",
                                "precision": "bf16", "log_interval": 1000})


def check_speed(checks):
    for model in SPEED_CONFIGS:
        checks.time(f"1 GPU, {model}, bf16", checks.train(f"speed-{model}", speed_config(model)))
    fast = json.loads((runs.ROOT / "configs" / "mnist_fast.json").read_text())
    run = checks.train("fast", fast, device="cuda")
    checks.timings["configs/mnist_fast.json"] = {"wall_seconds": run.summary()["wall_seconds"],
                                                 "accuracies": run.read_json("accuracies.json")}


def check_profile(checks):
    """Measures the kernel times of one step with Nsight Compute."""
    if not shutil.which("ncu"):
        checks.report("profile", True, "skipped: ncu not found")
        return
    for model, (skipped, profiled) in PROFILED_LAUNCHES.items():
        changes = {"max_steps": 8, "epochs": 1, "cuda_graphs": "off", "data": {"limit_train": 2560, "limit_test": 256}}
        config = checks.folder / f"profile-{model}.json"
        config.write_text(json.dumps(runs.merged(speed_config(model), changes)))
        text = checks.command(f"profile of {model}", "ncu", "--target-processes", "all", "--clock-control", "none", "--cache-control",
                              "none", "--print-units", "base", "--csv", "--page", "raw", "--metrics", "gpu__time_duration.sum",
                              "--launch-skip", str(skipped), "--launch-count", str(profiled),
                              program(), "--config", str(config), "--output",
                              str(checks.folder / f"profile-{model}"), "--quiet")
        if text:
            checks.profiles[model] = kernels_of_last_step(text)


def kernels_of_last_step(text):
    """Returns [name, launches, µs] of each kernel between the last two launches of the optimizer kernel, slowest first."""
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))
    rows = [row for row in rows if row["ID"].isdigit()]
    ends = [place for place, row in enumerate(rows) if row["Kernel Name"].startswith("update_by_")]
    sums = {}
    for row in rows[ends[-2] + 1 : ends[-1] + 1] if len(ends) > 1 else rows:
        kernel = sums.setdefault(row["Kernel Name"][:100], [0, 0.0])
        kernel[0] += 1
        kernel[1] += float(row["gpu__time_duration.sum"].replace(",", "")) / 1000
    return [[name, count, round(microseconds, 2)]
            for name, (count, microseconds) in sorted(sums.items(), key=lambda each: -each[1][1])]


def check_sanitizer(checks):
    """Runs compute-sanitizer's memcheck and racecheck on the project's kernels, each test case in a separate process."""
    if not shutil.which("compute-sanitizer"):
        checks.report("sanitizer", True, "skipped: compute-sanitizer not found")
        return
    case = ("--error-exitcode", "9", program("mnist-train-tests"))
    together(*(functools.partial(checks.command, f"{tool}: {name}", "compute-sanitizer", "--tool", tool, *case, only,
                                 variables=FEW_THREADS)
               for name, only in gpu_tests("[gpu][kernels]").items() for tool in ("memcheck", "racecheck")))


def check_features(checks):
    """Trains 40 steps with each feature that no other check covers on a GPU, and runs out of memory."""
    lmdb = checks.folder / "lmdb"
    checks.command("convert MNIST to LMDB", program(), "convert", "--from", f"idx:{runs.ROOT / 'third_party' / 'mnist'}",
                   "--to", f"lmdb:{lmdb}")
    limits = {key: value for key, value in runs.SMALL["data"].items() if key.startswith("limit")}
    encoded = {**limits, "format": "lmdb", "train": str(lmdb / "train"), "test": str(lmdb / "test"), "channels": 1}
    mixup = {"augment": [{"name": "random_crop", "padding": 2}, "mixup"]}
    small = runs.merged(runs.SMALL, SHORT)
    cases = (
        ("augmentation", 1, runs.merged(small, {"data": mixup})),
        ("accumulation and clipping", 1, small | {"gradient_accumulation_steps": 2, "max_gradient_norm": 1}),
        ("a GPU and a CPU, shards by speed", 2,
         runs.merged(small, {"launch": {"devices": ["cuda:0", "cpu"]}, "data": {"split": "throughput"}})),
        ("images decoded once", 1, small | {"data": encoded}),
        ("images decoded in each epoch", 1, small | {"data": encoded | {"decode": "stream"}}),
    )

    def check(name, processes, config):
        run = checks.train(file_name(name), config, processes, device="auto" if processes > 1 else "cuda")
        summary = run.summary()
        checks.report(name, summary["status"] == "finished", f"{summary['execution']}, accuracy {summary['test_accuracy']}")

    def check_memory():
        changes = {"batch_size": 60000, "model": {"name": "resnet18"}, "data": {"limit_train": 60000}, "max_steps": 2}
        try:
            checks.train("memory", runs.merged(small, changes), device="cuda")
            checks.report("out of memory", True, "not reached")
        except RuntimeError as error:
            found = re.search("out of memory: lower batch_size.*", str(error))
            checks.report("out of memory", found, found[0] if found else str(error))

    together(*(functools.partial(check, *case) for case in cases))
    check_memory()


def check_commands(checks):
    """Compares evaluate on the GPU with the run's own evaluation, and previews on the GPU and the CPU."""
    run = checks.train("evaluated", runs.merged(runs.SMALL, SHORT), device="cuda")
    settings = ("--config", str(run.config_path), "--set")
    text = checks.command("evaluate", program(), "evaluate", "--checkpoint", str(run.folder / "model.pt"), *settings, "device=cuda")
    accuracy = run.read_json("accuracies.json")[-1]
    checks.report("evaluate agrees with training", text and f'"test_accuracy":{accuracy},' in text, f"accuracy {accuracy}")
    images = [checks.folder / f"{device}.png" for device in ("cpu", "cuda")]
    for image in images:
        checks.command(f"preview, {image.stem}", program(), "preview", *settings, f"device={image.stem}", "--nproc-per-node", "1",
                       "--output", str(image))
    checks.report("previews agree", len({image.read_bytes() for image in images}) == 1, "the GPU's and the CPU's are compared")


PARTS = {
    "doctor": lambda checks: checks.command("doctor", program(), "doctor"),
    "nccl": check_two_ranks_of_nccl,
    "tests": check_gpu_tests,
    "parity": check_parity,
    "smoke": check_smoke,
    "features": check_features,
    "commands": check_commands,
    "sanitizer": check_sanitizer,
    "speed": check_speed,
    "training": check_training,
    "profile": check_profile,
}
AT_ONCE = ("nccl", "tests", "parity", "smoke", "features", "commands", "sanitizer")


def driver_version():
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]


def describe_machine(gpus):
    result = subprocess.run([program(), "--version"], capture_output=True, text=True, check=False, env=runs.environment())
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpus": gpus,
        "driver": driver_version(),
        "version": result.stdout.strip(),
        "system": platform.platform(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", metavar="FILE", help="result file")
    parser.add_argument("--parts", default=",".join(PARTS), metavar="NAME,…", help="default: %(default)s")
    arguments = parser.parse_args()
    chosen = arguments.parts.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    gpus = runs.gpu_names()
    if not gpus:
        sys.exit("gpu_check: nvidia-smi lists no GPU")
    model = file_name(gpus[0])
    output = Path(arguments.output or runs.ROOT / "scripts" / "bench" / "results" / f"gpu-{model}.json").resolve()
    machine = describe_machine(gpus)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mnist-train-gpu-") as folder:
        checks = Checks(Path(folder), len(gpus), output)
        seconds = {}

        def run_part(name):
            begin_s = time.monotonic()
            try:
                PARTS[name](checks)
            except (Exception, SystemExit) as error:  # pylint: disable=broad-exception-caught
                checks.report(name, False, f"{type(error).__name__}: {error}")
            with checks.lock:
                seconds[name] = round(time.monotonic() - begin_s, 1)
                result = machine | {"part_seconds": seconds, "checks": checks.results, "timings": checks.timings,
                                    "profiles": checks.profiles}
                output.write_text(json.dumps(result, indent=2) + "\n")
                with tarfile.open(output.with_name(f"{output.stem}-logs.tar.gz"), "w:gz") as tar:
                    tar.add(checks.logs, arcname=f"{output.stem}-logs")

        for group in [["doctor"], AT_ONCE, *([name] for name in PARTS if name not in ("doctor", *AT_ONCE))]:
            if here := [name for name in group if name in chosen]:
                together(*(functools.partial(run_part, name) for name in here))
    failed = sum(not check["ok"] for check in checks.results)
    print(f"gpu_check: {f'failed checks: {failed}' if failed else 'passed'}; {output}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
