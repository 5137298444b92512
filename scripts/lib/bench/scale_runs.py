"""Trainings of a few steps, as scripts/bench/scale times them: on this machine, and on two hosts with a cable of chosen bandwidth."""

import contextlib
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from machine import ROOT
from scale_model import Network

sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import runs  # noqa: E402

CONFIG = {
    "epochs": 1, "device": "cpu", "precision": "fp32", "seed": 1, "log_interval": 1,
    "launch": {"threads_per_process": 1, "max_restarts": 0},
    "checkpoint": {"every_epochs": 0, "keep_best": False}, "report": {"html": False, "tensorboard": False},
    "data": {"dataset": "mnist", "limit_test": 10},
}
WARM_UP = 3  # steps that are not counted; the Reducer rebuilds its buckets after the first
STRATEGIES = {"shared_memory": {"strategy": "shared_memory"}, "flat": {"strategy": "flat"}, "bucketed": {"strategy": "bucketed"},
              "bf16": {"strategy": "flat", "compression": "bf16"}}


def config_of(model, strategy, samples, ranks, steps):
    """So many samples a step and rank; `model` is a name or a list of layers."""
    network = {"name": model} if isinstance(model, str) else {"layers": model}
    return runs.merged(CONFIG, {
        "model": network, "batch_size_per_process": samples, "gradient_averaging": STRATEGIES[strategy],
        "data": {"limit_train": samples * ranks * (steps + WARM_UP)}})


def without_containers(modules):
    """(parameters, multiply-adds) of what `mnist-train describe` lists; it counts what a container holds twice."""
    names = [module["name"] for module in modules]
    return tuple((module["parameters"], module["multiply_adds"]) for module in modules
                 if module["parameters"] and not any(name.startswith(module["name"] + ".") for name in names))


def networks(binary, models):
    """By what the program says of them."""
    result = []
    for name in models:
        done = subprocess.run([binary, "describe", "--config", ROOT / "configs" / "mnist.json", "--set", f"model.name={name}", "--json"],
                              capture_output=True, text=True, check=True)
        result.append(Network(name, without_containers(json.loads(done.stdout)["modules"])))
    return result


def memory_of(mark):
    """Bytes that the processes with this variable take together; what several share counts once."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"\0MNIST_TRAIN_BENCH={mark}\0".encode() in b"\0" + (folder / "environ").read_bytes():
                total += 1024 * sum(int(line.split()[1]) for line in (folder / "smaps_rollup").read_text().splitlines()
                                    if line.startswith("Pss:"))
        except OSError:  # it ended, or is a thread of the kernel
            continue
    return total


def memory_when_training(process, mark, metrics):
    """Of the processes with this mark, asked for once, when the first step has been written."""
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.02)
    return memory_of(mark)


def figures_of(folder):
    """Seconds of a step after the warm-up, from the times at which steps ended; the mean counts, since steps differ."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ends = [line["time"] for line in lines if line["event"] == "step"][WARM_UP - 1:]
    steps = [after - before for before, after in zip(ends, ends[1:])]
    summary = json.loads((folder / "summary.json").read_text())
    return {"step_s": statistics.fmean(steps), "step_median_s": statistics.median(steps),
            "step_spread_s": statistics.stdev(steps), "steps": len(steps),
            "startup_s": summary["startup_seconds"], "largest_process_bytes": summary["peak_memory_bytes"]}


def on_one_machine(binary, model, strategy, samples, ranks, steps):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config_of(model, strategy if ranks > 1 else "flat", samples, ranks, steps)))
        command = [binary, "--config", path, "--output", f"{folder}/run", "--nproc-per-node", ranks, "--quiet"]
        mark = uuid.uuid4().hex
        with subprocess.Popen(list(map(str, command)), env=environment({"MNIST_TRAIN_BENCH": mark}), stderr=subprocess.PIPE,
                              text=True) as process:
            memory = memory_when_training(process, mark, Path(folder, "run", "metrics.jsonl"))
            _, errors = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{model} on {ranks} ranks, {strategy}: exit {process.returncode}\n{errors}")
        return {**figures_of(Path(folder, "run")), "all_processes_bytes": memory}


def ip(*arguments, check=True):
    return subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=check)


def require_hosts():
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("two hosts (the parts constants and hosts) take root, ip and tc (Debian's package iproute2)")


@contextlib.contextmanager
def two_hosts():
    """The names of two namespaces; in each the interface is `cable`, and the addresses are 10.88.78.1 and .2. Takes root."""
    names = [f"mt-scale-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.88.78.{number}/24", "dev", "cable")
            # Packets of 64 kB would each have to wait for all tokens that the limit can save up.
            ip("-n", name, "link", "set", "cable", "up", "gso_max_size", 16384)
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


def on_host(hosts, number):
    """How a command is started on a host: in its namespace, and on a core of its own where there are two."""
    core = sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))]
    return ["taskset", "--cpu-list", str(core), "ip", "netns", "exec", hosts[number]]


def limit_cable(hosts, gbit_per_s):
    """Both directions, by a queue that drops nothing; None: no limit."""
    for host in hosts:
        subprocess.run(["tc", "-n", host, "qdisc", "del", "dev", "cable", "root"], capture_output=True, check=False)
        if gbit_per_s is not None:
            # Tokens for 64 kB: enough for the timer to be late, too few to matter beside a megabyte.
            subprocess.run(["tc", "-n", host, "qdisc", "add", "dev", "cable", "root", "tbf", "rate", f"{round(1000 * gbit_per_s)}mbit",
                            "burst", "64kb", "limit", "64mb"], capture_output=True, check=True)


EXCHANGE = """
import socket, sys, threading, time
server, size = sys.argv[1] == "server", int(sys.argv[2])
if server:
    with socket.create_server(("10.88.78.1", 29460)) as listener:
        peer, _ = listener.accept()
else:
    for _ in range(100):
        try:
            peer = socket.create_connection(("10.88.78.1", 29460))
            break
        except OSError:
            time.sleep(0.05)
def exchange(size):
    sender = threading.Thread(target=peer.sendall, args=(bytes(size),))
    sender.start()
    left = size
    while left:
        left -= len(peer.recv(min(left, 1 << 20)))
    sender.join()
exchange(size // 4)
begin = time.perf_counter()
exchange(size)
print(size / (time.perf_counter() - begin))
"""


def cable_rate(hosts, gbit_per_s, size):
    """Bytes a second that plain sockets carry each way while both sides send so many."""
    limit_cable(hosts, gbit_per_s)
    sides = [subprocess.Popen([*on_host(hosts, number), sys.executable, "-c", EXCHANGE, side, str(size)], stdout=subprocess.PIPE, text=True)
             for number, side in enumerate(("server", "client"))]
    return {"bytes_per_s": statistics.fmean(float(side.communicate(timeout=60)[0]) for side in sides)}


def on_two_hosts(binary, hosts, model, strategy, samples, steps):
    """One rank on each, started as torchrun starts them: by variables, and as plain workers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config_of(model, strategy, samples, 2, steps)))
        processes = []
        for rank in (1, 0):
            place = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "10.88.78.1",
                     "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "cable"}
            command = [*on_host(hosts, rank), binary, "--config", path, "--output", f"{folder}/run", "--quiet"]
            processes.append(subprocess.Popen(list(map(str, command)), env=environment(place), stderr=subprocess.PIPE, text=True))
        errors = [process.communicate()[1] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(f"{model} on two hosts, {strategy}:\n" + "\n".join(errors))
        return figures_of(Path(folder, "run"))


def environment(changes=()):
    variables = {**runs.environment(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return variables | {key: str(value) for key, value in dict(changes).items()}


def busy_seconds():
    """What all processors of the machine have computed so far, and what the ended processes of this one have."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    of_all = (user + nice + system) / os.sysconf("SC_CLK_TCK")
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of_all, own.ru_utime + own.ru_stime


def least_disturbed(run, tries=2, limit=0.3):
    """The figures of the first run beside which others kept less than so many cores busy, or else of the least disturbed one."""
    found = []
    for _ in range(tries):
        begin, (all_before, own_before) = time.monotonic(), busy_seconds()
        figures = run()
        all_after, own_after = busy_seconds()
        others = max(0.0, all_after - all_before - (own_after - own_before)) / (time.monotonic() - begin)
        found.append({**figures, "others_cores": others})
        if others < limit:
            break
    return min(found, key=lambda figures: figures["others_cores"])
