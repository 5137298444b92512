"""Tests file systems that fail or lack features, emulated with strace.

Each system call that writes a checkpoint fails once, and either the old or the new checkpoint must be intact. A run with a
checkpoint is resumed and writes the next one; the N-th system call of one kind on the new file or its folder fails or kills the
process. N increases until there is no such call. This takes minutes, so only some writes are tested by default; all of them are
tested with MNIST_TRAIN_FULL_SWEEP=1."""

import fcntl
import os
import re
import shutil
import struct
import subprocess

import pytest
from support import MNIST, rank_variables, run, swept, train, wait_until, write_config

FULL = bool(os.environ.get("MNIST_TRAIN_FULL_SWEEP"))
CONFIG = {"epochs": 1, "batch_size": 32, "max_steps": 4, "data": {"limit_train": 256, "limit_test": 10},
          "checkpoint": {"every_steps": 2, "keep_best": False}}
CALLS = "openat,write,fsync,rename,close"
# (System call, injected fault, whether every failure must end the run; openat and close are also called to list folders.)
FAULTS = [("openat", "error=EIO", False), ("write", "error=ENOSPC", True), ("write", "error=EIO", True),
          ("fsync", "error=EIO", True), ("rename", "error=EIO", True), ("close", "error=EIO", False),
          *((call, "signal=KILL", True) for call in CALLS.split(","))]
QUICK = [("fsync", "error=EIO", True), ("rename", "error=EIO", True), ("rename", "signal=KILL", True)]
SCRIPT = """
at="$1/checkpoints" trace="$2"
shift 2
exec strace -D -f $QUICKLY -o "$trace" -P "$at" -P "$at/step-00000004.safetensors" \
  -P "$at/step-00000004.safetensors.partial-$$" -e trace="$CALLS" -e inject="$FAULT" "$@"
"""


def strace_works():
    if shutil.which("strace") is None:
        return "strace is not installed (scripts/test installs it)"
    done = subprocess.run(["strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "inject=getppid:error=EIO",
                           "true"], capture_output=True)
    return "" if done.returncode == 0 else "strace is not permitted"


pytestmark = pytest.mark.skipif(bool(strace_works()), reason=strace_works())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"), CONFIG)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """Returns a run of the first two steps, with their checkpoint."""
    folder = train(tmp_path_factory.mktemp("half"), CONFIG | {"max_steps": 2})
    assert [path.name for path in folder.checkpoints()] == ["step-00000002.safetensors"]
    return folder


def resume(folder, config, fault):
    """Resumes as the only rank of another launcher, so that the run is a single process whose pid is known before it starts."""
    quickly = "" if "signal" in fault else "--seccomp-bpf"  # the flag prevents strace 6.1 from injecting signals
    done = run("--config", config, "--output", folder / "run", "--resume", "auto", timeout=60,
               before=["bash", "-c", SCRIPT, "bash", folder / "run", folder / "trace"],
               variables=rank_variables() | {"CALLS": CALLS, "FAULT": fault, "QUICKLY": quickly})
    # The tracer is a separate process and may not have written its last line yet.
    wait_until(lambda: (folder / "trace").read_text().rstrip().endswith("+++"), "the end of the trace", 10)
    return done, (folder / "trace").read_text()


def check(folder, half, whole, call, kind, must_fail, number):
    """Tests a fault in the `number`-th call; returns False if there is no such call."""
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
        assert "resuming from" in done.stderr, what  # an unreadable folder must not restart from scratch
        assert (folder / "run/checkpoints/step-00000004.safetensors").exists(), what
    else:
        assert done.returncode == 5 and "mnist-train failed: " in done.stderr, what
        assert str(folder / "run/checkpoints") in done.stderr, what
    resumed = train(folder, CONFIG, "--resume", "auto")
    assert "trying the previous one" not in resumed.stderr and "resuming from" in resumed.stderr, what + resumed.stderr
    assert resumed.digest() == whole.digest(), what
    assert not list((resumed.path / "checkpoints").glob("*.partial*")), what
    return True


def numbers(call):
    """Returns the call numbers to test: all in a full sweep, otherwise a few of the two dozen writes."""
    return range(1, 100) if FULL or call != "write" else (1, 2, 9, 19, 100)


@pytest.mark.parametrize("call, kind, must_fail", swept(FAULTS, QUICK), ids=[f"{call} {kind}" for call, kind, _ in FAULTS])
def test_the_old_or_the_new_checkpoint_is_intact_whichever_system_call_fails(tmp_path, half, whole, call, kind, must_fail):
    hits = []
    for number in numbers(call):
        if not check(tmp_path / str(number), half, whole, call, kind, must_fail, number):
            break
        hits.append(number)
    assert len(hits) >= {"fsync": 2, "rename": 1}.get(call, 4)
    assert number not in hits  # the sweep is complete


# Locks, and folders that cannot be synced


def inject(folder, calls, *command, paths=(), expect=0):
    """Runs a command in which all `calls` fail, or only those on `paths`; returns the result and the trace."""
    (call, _, fault) = calls.partition(":")
    only = [word for path in paths for word in ("-P", path)]
    failing = ["-e", f"inject={call}:{fault}"] if fault else []
    done = run(*command, folder=folder, before=["strace", "-f", "--seccomp-bpf", "-o", folder / "trace", *only, "-e",
                                                f"trace={call}", *failing], expect=expect)
    trace = (folder / "trace").read_text()
    assert ("(INJECTED)" in trace) == bool(fault), done.stderr
    return done, trace


def ended_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_run_trains_with_one_warning_if_file_locks_are_unsupported(tmp_path):
    (tmp_path / "run").mkdir()
    pid = ended_process()
    (tmp_path / "run/.lock").write_text(f"process {pid} on {os.uname().nodename}")
    command = ["--config", write_config(tmp_path, CONFIG), "--output", tmp_path / "run", "--nproc-per-node", 1]
    done, _ = inject(tmp_path, "flock:error=ENOLCK", *command)
    (warning,) = re.findall(r".*cannot be locked.*", done.stderr)
    assert str(tmp_path / "run") in warning and str(pid) not in done.stderr


def test_a_report_acquires_no_lock_and_detects_a_run_in_progress(tmp_path, half):
    folder = shutil.copytree(half.path, tmp_path / "run")
    (folder / "summary.json").unlink()
    command = ["report", folder, "--output", tmp_path / "page.html"]
    with open(folder / ".lock", "w", encoding="utf-8") as lock:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        _, trace = inject(tmp_path, "flock", *command)
        assert "flock" not in trace, trace
        assert "running: this page refreshes itself" in (tmp_path / "page.html").read_text()
    run(*command, expect=0)
    assert "interrupted" in (tmp_path / "page.html").read_text()


@pytest.mark.sweep
def test_fetch_works_without_file_locks(tmp_path):
    done, _ = inject(tmp_path, "flock:error=ENOSYS", "fetch", "mnist", "--to", tmp_path / "data", "--mirror", MNIST.as_uri())
    assert done.stderr.count("cannot be locked") == 1
    assert len(list((tmp_path / "data").iterdir())) == 4


def test_a_run_trains_with_one_warning_if_folders_cannot_be_synced(tmp_path, whole):
    folder = tmp_path / "run"
    command = ["--config", write_config(tmp_path, CONFIG), "--output", folder, "--nproc-per-node", 1]
    done, trace = inject(tmp_path, "fsync:error=EINVAL", *command, paths=[folder, folder / "checkpoints"])
    assert trace.count("(INJECTED)") > 2, trace
    assert done.stderr.count("cannot be synced") == 1, done.stderr
    assert (folder / "model.pt").read_bytes() == (whole.path / "model.pt").read_bytes()


@pytest.mark.parametrize("error, name, call", [("EIO", "", "fsync"), ("ENOSPC", "metrics.jsonl", "openat"),
                                               ("EIO", "lineage.jsonl", "openat")])
def test_a_failed_start_does_not_block_the_next_one(tmp_path, error, name, call):
    folder = tmp_path / "run"
    command = ["--config", write_config(tmp_path, CONFIG), "--output", folder, "--nproc-per-node", 1]
    done, _ = inject(tmp_path, f"{call}:error={error}", *command, paths=[folder / name if name else folder], expect=1)
    assert str(folder) in done.stderr and "cannot be synced" not in done.stderr
    train(tmp_path, CONFIG)
