"""Helpers for the system tests, which run the real binary and read its output files."""

import collections
import contextlib
import functools
import gzip
import hashlib
import importlib
import importlib.util
import json
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from pathlib import Path

import numpy
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "scripts" / "lib"))
import runs  # noqa: E402
from runs import merged  # noqa: E402

BINARY = os.environ["MNIST_TRAIN_BINARY"]
MNIST = REPOSITORY / "third_party" / "mnist"
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMIX_",
           "PMI_", "MPI_LOCAL", "OMP_", "MNIST_TRAIN_")
MARK = "MNIST_TRAIN_TEST_MARK"
LONG_S = 120  # timeout of programs that exit on their own, generous enough for a loaded machine

# As in launch/status_board.h: phase, wait, epoch, step, batch, and times.
PHASES = ("startup", "rendezvous", "data loading", "weight loading", "training", "evaluation", "saving", "shutdown")
STATUS = struct.Struct("<IIqqqddd")
STATUS_BYTES = 64
Status = collections.namedtuple("Status", "phase wait epoch step batch")

# 20 steps per epoch, about 20 ms each. The device is set, so results do not depend on whether the machine has a GPU.
SMALL = {
    "epochs": 2,
    "batch_size": 128,
    "test_batch_size": 500,
    "learning_rate": 0.01,
    "sgd_momentum": 0.9,
    "seed": 1,
    "deterministic": True,
    "device": "cpu",
    "precision": "fp32",
    "log_interval": 1,
    "data": {"dataset": "mnist", "limit_train": 2560, "limit_test": 500},
    "launch": {"max_restarts": 0},
}
SMALL_MNIST = {"train": 5120, "test": 2000}  # number of images in small_mnist()
# A run that lasts until the test stops it.
LONG_RUN = {"epochs": 1000, "data": {"limit_test": 100}, "checkpoint": {"keep_best": False}}


def swept(cases, quick):
    """Returns `cases` for parametrize; only `scripts/test --all` runs those that are not in `quick`."""
    assert all(case in cases for case in quick)
    return [case if case in quick else pytest.param(*(case if isinstance(case, tuple) else (case,)),
                                                    marks=pytest.mark.sweep) for case in cases]


def own_data(form, train, test=None, **others):
    """Returns the `data` section of a config that uses all samples of the given files instead of MNIST."""
    return {"dataset": None, "format": form, "train": str(train), "test": str(test or train), "limit_train": None,
            "limit_test": None, **others}


def environment(**variables):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    ours = {"MNIST_TRAIN_DATA": str(MNIST.parent), "XDG_CACHE_HOME": cache_folder().name}
    return kept | ours | {key: str(value) for key, value in variables.items()}


def write_config(folder, changes=None, name="config.json"):
    path = Path(folder) / name
    config = merged(SMALL, changes or {})
    data = config["data"]
    if data.get("dataset") == "mnist" and "root" not in data and all(
            (data.get(f"limit_{part}") or count + 1) <= count for part, count in SMALL_MNIST.items()):
        config["data"] = data | {"root": small_mnist().name}
    path.write_text(json.dumps(config))
    return path


@functools.cache
def cache_folder():
    """Returns a temporary cache folder, so that tests do not touch the user's cache."""
    return tempfile.TemporaryDirectory(prefix="mnist-train-cache-")


@functools.cache
def small_mnist():
    """Returns a data.root with the first images of MNIST: decompressing all of MNIST takes longer than most test runs."""
    root = tempfile.TemporaryDirectory(prefix="mnist-train-small-")
    folder = Path(root.name) / "mnist"
    folder.mkdir()
    for part, prefix in (("train", "train"), ("test", "t10k")):
        for kind, array in zip(("images-idx3", "labels-idx1"), mnist_bytes(prefix, SMALL_MNIST[part])):
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(idx_bytes(array))
    return root


def run_program(*command, expect=0, timeout=LONG_S, **others):
    """Runs a program until it exits and returns its result. Asserts exit code `expect` unless that is None."""
    command = [str(word) for word in command]
    done = subprocess.run(command, text=True, errors="replace", timeout=timeout,
                          **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | others)
    assert expect in (None, done.returncode), f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def run(*arguments, folder=None, variables=None, expect=None, before=(), **others):
    """Runs mnist-train. `before`: a wrapper command that execs mnist-train."""
    return run_program(*before, BINARY, *arguments, expect=expect, cwd=folder, env=environment(**(variables or {})), **others)


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def printed_json(*arguments, **others):
    """Runs mnist-train, which must succeed, and returns the JSON value that it prints."""
    return json.loads(run(*arguments, expect=0, **others).stdout)


def printed_rows(*arguments, **others):
    """Runs mnist-train, which must succeed, and returns the JSON objects that it prints, one per line."""
    return json_lines(run(*arguments, expect=0, **others).stdout)


def run_on_terminal(*arguments, folder=None):
    """Runs mnist-train with a terminal as standard output. Returns (exit code, standard output, standard error)."""
    primary, secondary = os.openpty()
    with tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=secondary, stderr=stderr, cwd=folder,
                                   stdin=subprocess.DEVNULL, env=environment())
        os.close(secondary)
        output = b""
        while True:
            try:
                piece = os.read(primary, 4096)
            except OSError:  # the last process that had the terminal open has exited
                break
            output += piece
        os.close(primary)
        code = process.wait(LONG_S)
        stderr.seek(0)
        return code, output.decode(errors="replace").replace("\r\n", "\n"), stderr.read()


class Process:
    """A background process that the test acts on. Leaving the `with` block kills it and all its descendants."""

    def __init__(self, command, folder, run_folder=None, variables=None):
        self.mark = uuid.uuid4().hex
        self.run_folder = RunFolder(run_folder or folder)
        self.stderr_path = Path(folder) / f"stderr-{self.mark}.txt"
        self.stdout_path = Path(folder) / f"stdout-{self.mark}.txt"
        with open(self.stderr_path, "wb") as stderr, open(self.stdout_path, "wb") as stdout:
            self.popen = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=stdout,
                                          stderr=stderr, cwd=folder, start_new_session=True,
                                          env=environment(**(variables or {}), **{MARK: self.mark}))
        self.pid = self.popen.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.alive():
            send(pid, signal.SIGKILL)
        self.popen.wait()

    @property
    def stderr(self):
        return self.stderr_path.read_text(errors="replace")

    @property
    def stdout(self):
        return self.stdout_path.read_text(errors="replace")

    def wait(self, timeout=LONG_S):
        return self.popen.wait(timeout)

    def send(self, number):
        self.popen.send_signal(number)

    def stop(self, number, code):
        """Sends signal `number` and asserts that the run exits with `code`."""
        self.send(number)
        assert self.wait() == code, self.stderr

    def alive(self):
        """Returns the pids of all processes of this run, except zombies."""
        return [pid for pid in all_pids() if environment_of(pid).get(MARK) == self.mark]

    def ranks(self):
        """Returns the pids of the ranks, keyed by rank."""
        found = {}
        for pid in self.alive():
            variables = environment_of(pid)
            if "RANK" in variables and "mnist-train" in executable_of(pid):
                found[int(variables["RANK"])] = pid
        return found

    def fork_server(self):
        """Returns the pid of the launcher's child that forks the ranks, or None until it has set its title."""
        return next((pid for pid in self.alive() if title_of(pid).startswith("mnist-train: fork server")), None)

    def listening(self):
        return listening_sockets(self.alive())

    def wait_for_step(self, step):
        wait_until(lambda: self.run_folder.last_step() >= step or self.popen.poll() is not None, f"step {step}: {self.stderr}")
        assert self.popen.poll() is None, f"ended before step {step}: {self.stderr}"

    def board(self):
        """Returns the status of each rank from the status board; empty before and between attempts."""
        for descriptor in Path(f"/proc/{self.pid}/fd").glob("*"):
            try:
                if "mnist-train-status" not in os.readlink(descriptor):
                    continue
                content = descriptor.read_bytes()
            except OSError:
                continue
            return [Status(*STATUS.unpack_from(content, begin)[:5]) for begin in range(0, len(content), STATUS_BYTES)]
        return []

    def blocks(self, number):
        """Returns whether the process blocks signal `number`, which would otherwise kill it."""
        with contextlib.suppress(OSError):
            mask = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{self.pid}/status").read_text()).group(1)
            return bool(int(mask, 16) >> (number - 1) & 1)
        return False

    def wait_for_phase(self, rank, phase, step=0):
        """Waits until `rank` is in `phase`, at `step` or later. Polls without sleeping, because some phases last only a millisecond."""
        def reached():
            board = self.board()
            if phase == PHASES[0]:  # the launcher handles signals from this phase on
                return len(board) > rank or self.blocks(signal.SIGTERM)
            return len(board) > rank and board[rank].phase == PHASES.index(phase) and board[rank].step >= step
        wait_until(lambda: reached() or self.popen.poll() is not None, f"{phase} of rank {rank}", interval=0)
        assert self.popen.poll() is None, f"ended before {phase}: {self.stderr}"

    def wait_for_ranks(self, count):
        wait_until(lambda: len(self.ranks()) == count or self.popen.poll() is not None, f"{count} ranks")
        assert self.popen.poll() is None, self.stderr
        return self.ranks()


class RunFolder(runs.RunFolder):
    @property
    def path(self):
        return self.folder

    def rows(self, name):
        """Returns the objects in a JSON Lines file."""
        return json_lines((self.path / name).read_text())

    def losses(self):
        """Returns the losses of all recorded steps."""
        return [step["loss"] for step in self.steps()]

    def last_step(self):
        steps = self.steps()
        return steps[-1]["step"] if steps else 0

    def weights(self):
        return read_pt(self.path / "model.pt")

    def digest(self):
        return hashlib.sha256((self.path / "model.pt").read_bytes()).hexdigest()

    def checkpoints(self):
        """Returns the checkpoint files, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*.safetensors"))


def train_command(config, output, processes, *flags):
    return [BINARY, "--config", config, "--output", output, "--nproc-per-node", processes, *flags]


def start(folder, changes=None, *flags, processes=2, output="run", variables=None):
    config = write_config(folder, changes, f"{output}.json")
    return Process(train_command(config, Path(folder) / output, processes, *flags), folder, Path(folder) / output, variables)


def train(folder, changes=None, *flags, processes=1, output="run", variables=None, expect=0, timeout=LONG_S):
    """Trains and returns the run folder. The program must exit with `expect` within `timeout` seconds."""
    with start(folder, changes, *flags, processes=processes, output=output, variables=variables) as process:
        code = process.wait(timeout)
        assert code == expect, f"exit {code}\n{process.stderr}"
        process.run_folder.stderr = process.stderr
        return process.run_folder


def stop_by_sigterm(folder, changes, processes, step):
    """Starts a run, sends it SIGTERM after `step`, and returns its run folder."""
    with start(folder, changes, processes=processes) as process:
        process.wait_for_step(step)
        process.stop(signal.SIGTERM, 143)
        assert "--resume auto" in process.stderr
    return process.run_folder


def rank_variables(rank=0, world_size=1, port=None):
    """Returns the environment variables that a launcher such as torchrun sets for a rank on this machine."""
    return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port or free_port()}


def worker(folder, rank, port, changes, world_size=2, before=(), variables=None):
    """Starts one rank as a launcher such as torchrun would. `before`: a wrapper command that execs mnist-train."""
    config = write_config(folder, changes, f"rank{rank}.json")
    return Process([*before, BINARY, "--config", config, "--output", folder / "run"], folder, folder / "run",
                   rank_variables(rank, world_size, port) | (variables or {}))


@contextlib.contextmanager
def at_once(processes):
    """Keeps all `processes` running until the end of the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(process) for process in processes]


@contextlib.contextmanager
def workers(folder, changes, count=2, port=None, **others):
    """Keeps all ranks of a run running until the end of the block; the last rank starts first. Yields them in rank order."""
    port = port or free_port()
    with at_once(worker(folder, rank, port, changes, world_size=count, **others) for rank in reversed(range(count))) as ranks:
        yield ranks[::-1]


def torchrun(folder, changes, *flags, variables=None):
    """Starts two ranks with torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", 2,
               # Otherwise torchrun resolves this host's name, which takes a minute if DNS does not know it.
               "--local-addr", "127.0.0.1", *flags, BINARY,
               "--config", write_config(folder, changes), "--output", folder / "run"]
    return Process(command, folder, folder / "run", variables)


def averaging(strategy):
    return {"gradient_averaging": {"strategy": strategy}}


def relative_difference(weights, expected):
    """Returns the maximum of max|a - b| / max|b| over all tensors."""
    assert list(weights) == list(expected)
    return max(abs(weights[name] - tensor).max() / abs(tensor).max() for name, tensor in expected.items())


def wait_until(condition, what, timeout=LONG_S, interval=0.005):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(interval)


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment_of(pid):
    """Returns the environment of a process; empty for zombies and processes of other users."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)


def title_of(pid):
    """Returns the command line of a process, or the title it has set; empty if it has exited."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""


def executable_of(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def listening_sockets(pids):
    """Returns [(address, port)] of the processes' listening TCP sockets, with IPv4 in dotted notation and IPv6 in hex."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(descriptor.readlink())
            except OSError:
                continue
            inodes.update(re.findall(r"socket:\[(\d+)\]", target))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                address, port = columns[1].split(":")
                if table == "tcp":
                    address = ".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
                found.append((address, int(port, 16)))
    return found


def assert_gone(process, within_s):
    wait_until(lambda: not process.alive(), f"the end of {process.alive()}", timeout=within_s)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@functools.cache
def read_idx(path):
    """Reads a gzipped IDX file, independently of the program's own reader."""
    content = gzip.decompress(Path(path).read_bytes())
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4:4 + 4 * dimensions])
    return numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)


def idx_bytes(array):
    """Returns an IDX file with the bytes of `array`."""
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_folder(folder, images, labels):
    """Writes a folder of IDX files with the same [N,H,W] images for training and test."""
    folder.mkdir()
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels.astype(numpy.uint8)))
    return folder


def mnist_bytes(part, count=None):
    """Returns the first `count` images [N,28,28] and labels [N] of "train" or "t10k"."""
    return [read_idx(MNIST / f"{part}-{kind}-ubyte.gz")[:count] for kind in ("images-idx3", "labels-idx1")]


def read_mnist(part, count=None):
    """Returns the first `count` normalised images [N,1,28,28] and labels [N] of "train" or "t10k"."""
    images, labels = mnist_bytes(part, count)
    return (images[:, None].astype(numpy.float32) / 255 - 0.1307) / 0.3081, labels.astype(numpy.int64)


class PtUnpickler(pickle.Unpickler):
    """Implements the subset of torch.load that model.pt needs, so that tests work without PyTorch."""

    def __init__(self, archive, root):
        super().__init__(archive.open(f"{root}/data.pkl"))
        self.archive, self.root = archive, root

    def find_class(self, module, name):
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): self.tensor,
            ("torch", "FloatStorage"): "f4",
            ("torch", "LongStorage"): "i8",
            ("collections", "OrderedDict"): dict,
        }
        return known[module, name]

    def persistent_load(self, key):
        _, kind, number, _, count = key
        return numpy.frombuffer(self.archive.read(f"{self.root}/data/{number}"), "<" + kind, count)

    @staticmethod
    def tensor(storage, offset, sizes, strides, *_):
        strides = [stride * storage.itemsize for stride in strides]
        return numpy.lib.stride_tricks.as_strided(storage[offset:], sizes, strides)


def read_pt(path):
    with zipfile.ZipFile(path) as archive:
        return PtUnpickler(archive, archive.namelist()[0].split("/")[0]).load()


def block_with(word, language="python", document="configs/README.md"):
    """Returns the only code block of `document` that is in `language` and contains `word`."""
    parts = re.split(r"^```", (REPOSITORY / document).read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = [part.split("\n", 1) for part in parts[1::2]]
    found = [code for own, code in blocks if own == language and word in code]
    assert len(found) == 1, f"{len(found)} blocks of {language or 'text'} in {document} have {word}"
    return found[0]


def import_file(path):
    """Imports a Python file by its path."""
    spec = importlib.util.spec_from_file_location(f"imported_{Path(path).stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require_torchrun():
    """Skips the test unless Python can run torchrun. Importing torch to find out takes seconds, so this looks for a package
    that torch needs; a CPU-only LibTorch is installed without it."""
    if not all(map(importlib.util.find_spec, ("torch", "networkx"))):
        pytest.skip("Python cannot import torch", allow_module_level=True)


def import_torch():
    """Returns PyTorch, or skips the test module: a CPU-only LibTorch has no Python package."""
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # missing libraries raise various exceptions
        pytest.skip(f"Python cannot import torch: {error}", allow_module_level=True)
    torch.set_num_threads(1)
    return torch
