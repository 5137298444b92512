"""Every system call that writes a checkpoint fails once, by strace: the old one or the new one is there, never half of one.

A run that has a checkpoint is resumed and writes the next; its N-th call of a kind on that file or its folder fails, or the
process is killed there; N rises until there is no such call. All of them take minutes, which MNIST_TRAIN_FULL_SWEEP=1 allows;
else some of the many writes are left out.
"""

import os
import shutil
import subprocess

import pytest
from support import BINARY, environment, free_port, swept, train, wait_until, write_config

FULL = bool(os.environ.get("MNIST_TRAIN_FULL_SWEEP"))
CONFIG = {"epochs": 1, "batch_size": 32, "max_steps": 4, "data": {"limit_train": 256, "limit_test": 10},
          "checkpoint": {"every_steps": 2, "keep_best": False}}
CALLS = "openat,write,fsync,rename,close"
# What a call fails with, and whether every failure of it must end the run: folders are opened to look around, too.
FAULTS = [("openat", "error=EIO", False), ("write", "error=ENOSPC", True), ("write", "error=EIO", True),
          ("fsync", "error=EIO", True), ("rename", "error=EIO", True), ("close", "error=EIO", False),
          *((call, "signal=KILL", True) for call in CALLS.split(","))]
QUICK = [("fsync", "error=EIO", True), ("rename", "error=EIO", True), ("rename", "signal=KILL", True)]
SCRIPT = """
at="$1/checkpoints"
exec strace -D -f $QUICKLY -o "$2" -P "$at" -P "$at/step-00000004.safetensors" \
  -P "$at/step-00000004.safetensors.partial-$$" -e trace="$CALLS" -e inject="$FAULT" \
  "$3" --config "$4" --output "$1" --resume auto
"""


def strace_works():
    if shutil.which("strace") is None:
        return "no strace (scripts/test installs it)"
    done = subprocess.run(["strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "inject=getppid:error=EIO",
                           "true"], capture_output=True)
    return "" if done.returncode == 0 else "strace may not trace here"


pytestmark = pytest.mark.skipif(bool(strace_works()), reason=strace_works())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"), CONFIG)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run of the first two steps, with their checkpoint."""
    folder = train(tmp_path_factory.mktemp("half"), CONFIG | {"max_steps": 2})
    assert [path.name for path in folder.checkpoints()] == ["step-00000002.safetensors"]
    return folder


def resume(folder, config, fault):
    """As the only rank of a launcher, so that it is one process whose number is known before it starts."""
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    command = ["bash", "-c", SCRIPT, "bash", folder / "run", folder / "trace", BINARY, config]
    quickly = "" if "signal" in fault else "--seccomp-bpf"  # which keeps strace 6.1 from sending signals
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60,
                          env=environment(**place, CALLS=CALLS, FAULT=fault, QUICKLY=quickly))
    # The tracer is a process of its own, which may have a line to write yet.
    wait_until(lambda: (folder / "trace").read_text().rstrip().endswith("+++"), "the end of the trace", 10)
    return done, (folder / "trace").read_text()


def check(folder, half, whole, call, kind, must_fail, number):
    """False when there was no such call any more."""
    folder.mkdir()
    config = write_config(folder, CONFIG)
    shutil.copytree(half.path, folder / "run")
    done, trace = resume(folder, config, f"{call}:{kind}:when={number}")
    what = f"{call} {number} {kind}: exit {done.returncode}\n{done.stderr}"
    hit = "(INJECTED)" in trace or done.returncode in (-9, 137)
    if not hit:
        assert done.returncode == 0, what
        return False
    if "KILL" in kind:
        assert done.returncode in (-9, 137), what
    elif done.returncode == 0:
        assert not must_fail, what
        assert "resuming from" in done.stderr, what  # a folder that cannot be read is no reason to start from scratch
        assert (folder / "run/checkpoints/step-00000004.safetensors").exists(), what
    else:
        assert done.returncode == 5 and "mnist-train failed: " in done.stderr, what
        assert str(folder / "run/checkpoints") in done.stderr, what
    resumed = train(folder, CONFIG, "--resume", "auto")
    assert "trying the one before" not in resumed.stderr and "resuming from" in resumed.stderr, what + resumed.stderr
    assert resumed.digest() == whole.digest(), what
    assert not list((resumed.path / "checkpoints").glob("*.partial*")), what
    return True


def numbers(call):
    """All that a full sweep takes; else, of the two dozen writes, a few."""
    return range(1, 100) if FULL or call != "write" else (1, 2, 9, 19, 100)


@pytest.mark.parametrize("call, kind, must_fail", swept(FAULTS, QUICK), ids=[f"{call} {kind}" for call, kind, _ in FAULTS])
def test_a_checkpoint_is_old_or_new_whichever_system_call_fails(tmp_path, half, whole, call, kind, must_fail):
    hits = []
    for number in numbers(call):
        if not check(tmp_path / str(number), half, whole, call, kind, must_fail, number):
            break
        hits.append(number)
    assert len(hits) >= {"fsync": 2, "rename": 1}.get(call, 4)
    assert number not in hits  # the sweep came to its end
