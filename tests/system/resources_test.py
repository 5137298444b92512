"""Tests full disks, exhausted limits, closed pipes and clock jumps: messages are clear and no saved work is lost."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support import (BINARY, LONG_S, MNIST, Process, RunFolder, environment, run, send, start, swept, train, train_command,
                     wait_until, workers, write_config)

# One epoch of 20 steps; a checkpoint of `net` is 3.4 MB.
CONFIG = {"epochs": 1, "batch_size": 45, "data": {"limit_train": 886, "limit_test": 100}, "checkpoint": {"every_steps": 5}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed"), CONFIG, processes=2)


@contextlib.contextmanager
def cgroup(controller, limit):
    """Creates a cgroup with a limit ("memory": bytes, "pids": number of processes and threads) and yields its folder."""
    old, new = Path("/sys/fs/cgroup", controller), Path("/sys/fs/cgroup")
    parent, name = (old, {"memory": "memory.limit_in_bytes"}) if old.is_dir() else (new, {"memory": "memory.max"})
    folder = parent / f"mnist-train-test-{os.getpid()}"
    try:
        if parent == new:
            (new / "cgroup.subtree_control").write_text(f"+{controller}")
        folder.mkdir()
        (folder / name.get(controller, f"{controller}.max")).write_text(str(limit))
    except OSError as error:
        pytest.skip(f"cannot create cgroups: {error}")
    try:
        yield folder
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the end of all processes")
        folder.rmdir()


def inside(folder):
    """Returns a wrapper command that enters a cgroup and execs the command that follows."""
    return ["bash", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "bash"]


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def run_within(before, tmp_path, changes, timeout=60, **others):
    """Trains on two processes under the wrapper command `before`; fails if the run hangs."""
    config = write_config(tmp_path, changes)
    return run("--config", config, "--output", tmp_path / "run", "--nproc-per-node", 2, before=before, timeout=timeout, **others)


needs_mounts = pytest.mark.skipif(not can_mount(), reason="mounting a file system requires root")


def with_file_system(options, script, *arguments):
    """Runs a shell script with a small file system mounted at $FOLDER."""
    prepared = f'mount -t tmpfs -o {options} mnist-train-test "$FOLDER" && {script}'
    return subprocess.run(["unshare", "-m", "bash", "-c", prepared, "bash", *map(str, arguments)], capture_output=True,
                          text=True, errors="replace", timeout=120, env=environment(FOLDER=arguments[0]))


@needs_mounts
def test_a_full_disk_exits_5_and_the_run_resumes_bit_identically(tmp_path, undisturbed):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    command = '"$2" --config "$3" --output "$FOLDER/run" --nproc-per-node 2'
    done = with_file_system("size=8m", f"""
        {command}; echo "first $?" >&2
        ls "$FOLDER"/run/checkpoints >&2
        mount -o remount,size=100m "$FOLDER"
        {command} --resume auto; echo "second $?" >&2
        cp -r "$FOLDER/run" "$4" """, disk, BINARY, write_config(tmp_path, CONFIG), kept)
    assert "first 5" in done.stderr and "No space left on device" in done.stderr, done.stderr
    assert "mnist-train failed: rank 0" in done.stderr and "step-000000" in done.stderr
    assert ".partial" not in done.stderr[done.stderr.index("first 5"):]
    assert "resuming from" in done.stderr and "second 0" in done.stderr, done.stderr
    assert RunFolder(kept).digest() == undisturbed.digest()


@needs_mounts
def test_a_read_only_output_is_refused_before_training(tmp_path):
    (tmp_path / "disk").mkdir()
    begin = time.monotonic()
    done = with_file_system("ro,size=1m", '"$2" --config "$3" --output "$FOLDER/run"', tmp_path / "disk", BINARY,
                            write_config(tmp_path, CONFIG))
    assert done.returncode == 2 and "Read-only file system" in done.stderr, done.stderr
    assert time.monotonic() - begin < 5


def test_the_limit_on_open_files_is_raised_or_reported(tmp_path):
    changes = CONFIG | {"max_steps": 2}
    as_user = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-all"] if os.geteuid() == 0 else []
    refused = run_within([*as_user, "prlimit", "--nofile=32:32", "--"], tmp_path, changes, expect=1)
    assert "32 files" in refused.stderr and "ulimit -n" in refused.stderr, refused.stderr
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    run_within(["prlimit", "--nofile=32:4096"], tmp_path, changes, expect=0)


def test_out_of_memory_is_reported_with_the_settings_to_lower(tmp_path):
    changes = {"batch_size": 60000, "model": {"name": "resnet18"}, "data": {"limit_train": 60000}}
    done = run_within(["prlimit", "--as=4000000000"], tmp_path, changes, timeout=20, expect=1)
    assert "in step 1 (epoch 1): out of memory: lower batch_size" in done.stderr, done.stderr
    assert "frame #" not in done.stderr
    log = (tmp_path / "run/logs/rank-0.log").read_text()
    assert "DefaultCPUAllocator" in log or "no memory for the activations of a batch" in log


@pytest.mark.parametrize("mebibytes", swept([70, 80], [80]))
def test_a_memory_limit_too_low_to_start_is_reported_at_once(tmp_path, mebibytes):
    with cgroup("memory", mebibytes << 20) as folder:
        done = run_within(inside(folder), tmp_path, {"launch": {"max_restarts": 2}}, expect=1)
    assert f"out of memory: processes used up the {mebibytes} MiB that memory." in done.stderr
    assert "the number of processes, or raise the limit" in done.stderr and "restarting" not in done.stderr


# Allocates 4 MiB per line of input; the OOM killer never selects it.
HOG = """import sys
open("/proc/self/oom_score_adj", "w").write("-1000")
kept = []
for line in sys.stdin:
    kept.append(b"x" * (4 << 20))
    print(flush=True)
"""


def test_a_run_killed_by_a_memory_limit_restarts_only_once_after_progress(tmp_path):
    config = write_config(tmp_path, {"epochs": 1000, "launch": {"max_restarts": 5}})
    with cgroup("memory", 300 << 20) as folder:
        with subprocess.Popen([*inside(folder), sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hog, \
                Process([*inside(folder), *train_command(config, tmp_path / "run", 2)], tmp_path, tmp_path / "run") as process:
            process.wait_for_step(5)
            while process.popen.poll() is None:
                if len(process.ranks()) == 2:
                    hog.stdin.write(b"\n")
                    hog.stdin.flush()
                    hog.stdout.readline()
            assert process.wait() == 1, process.stderr
    assert process.stderr.count("restarting all processes") == 1, process.stderr
    assert process.stderr.count("out of memory: processes used up the 300 MiB that memory.") == 2, process.stderr
    assert "out of memory" in process.run_folder.summary()["error"]


THREAD_LIMIT = "Resource temporarily unavailable: a limit on processes and threads (ulimit -u, "


@pytest.mark.parametrize("most", swept([3, 4, 6, 8, 10, 14, 17, 24], [3, 6, 10, 17]))
def test_a_limit_on_processes_and_threads_is_reported_wherever_it_is_hit(tmp_path, most):
    changes = {"max_steps": 3, "launch": {"threads_per_process": 4, "hang_timeout_s": 30}}
    with cgroup("pids", most) as folder:
        done = run_within(inside(folder), tmp_path, changes, timeout=25)
    if done.returncode == 0 and most > 20:
        return
    assert done.returncode == 1, done.stderr
    assert THREAD_LIMIT in done.stderr and "launch.threads_per_process" in done.stderr


def test_a_checkpoint_is_saved_even_if_no_thread_can_be_created(tmp_path):
    config = write_config(tmp_path, {"epochs": 1000})
    with cgroup("pids", 200) as folder:
        command = [*inside(folder), *train_command(config, tmp_path / "run", 2)]
        with Process(command, tmp_path, tmp_path / "run") as process:
            process.wait_for_step(5)
            (folder / "pids.max").write_text("1")  # does not kill existing processes
            process.stop(signal.SIGTERM, 143)
    assert THREAD_LIMIT in process.stderr
    assert "training waits while the checkpoint is saved" in process.stderr
    assert process.run_folder.checkpoints()


def test_a_limit_on_a_users_processes_is_reported(tmp_path):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", f"HOME={tmp_path}"]
    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter tmp_path
        os.chmod(folder, 0o777)
        reaches = subprocess.run([*nobody, BINARY, "--version"], capture_output=True, check=False, cwd="/")
        if reaches.returncode != 0:
            pytest.skip("requires root, and a program that another user can execute")
        limited = [*nobody, "prlimit", "--nproc=5", "--"]
        done = run_within(limited, Path(folder), {"max_steps": 3, "data": {"dataset": None, "format": "synthetic"}}, folder="/", expect=1)
    assert THREAD_LIMIT in done.stderr


@pytest.mark.parametrize("closed", swept(["<&-", ">&-", "2>&-", "<&- >&- 2>&-"], ["2>&-", "<&- >&- 2>&-"]))
def test_output_to_closed_standard_streams_does_not_end_up_in_a_file(tmp_path, closed):
    config = write_config(tmp_path, {"max_steps": 3})
    command = f"{BINARY} --config {config} --output {tmp_path}/run --nproc-per-node 2 {closed}"
    assert subprocess.run(["bash", "-c", command], env=environment(), check=False, timeout=LONG_S).returncode == 0
    assert "epoch" not in (tmp_path / "run" / ".lock").read_text()
    assert RunFolder(tmp_path / "run").summary()["status"] == "finished"


@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_closes_the_pipe_does_not_end_the_run(tmp_path, undisturbed, reader):
    command = f'"$0" --config "$1" --output "$2" --nproc-per-node 2 2>&1 | {reader}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command, BINARY, write_config(tmp_path, CONFIG), tmp_path / "run"],
                          env=environment(), timeout=60, capture_output=True)
    assert done.returncode == 0
    assert RunFolder(tmp_path / "run").digest() == undisturbed.digest()


def test_unwritable_messages_do_not_end_a_run_but_an_unwritable_result_is_an_error(tmp_path, undisturbed):
    config = write_config(tmp_path, CONFIG)
    with open("/dev/full", "w") as full:
        run("--config", config, "--output", tmp_path / "run", "--nproc-per-node", 2, stderr=full, expect=0)
        assert RunFolder(tmp_path / "run").digest() == undisturbed.digest()
        for command in (["evaluate", "--checkpoint", tmp_path / "run/model.pt", "--config", config], ["config-schema"],
                        ["fetch", "mnist", "--to", tmp_path / "mnist", "--mirror", MNIST.as_uri()]):
            assert "No space left" in run(*command, stdout=full, expect=1).stderr


def faketime_library():
    for folder in ("/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime"):
        path = os.path.join(folder, "libfaketimeMT.so.1")
        if os.path.exists(path):
            return path
    return None


@pytest.mark.skipif(faketime_library() is None, reason="libfaketime is not installed (Debian package faketime)")
def test_a_clock_that_jumps_by_a_day_changes_nothing(tmp_path, undisturbed):
    clock = tmp_path / "clock"
    clock.write_text("+0")
    variables = {"LD_PRELOAD": faketime_library(), "FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": 1,
                 "FAKETIME_DONT_FAKE_MONOTONIC": 1, "DONT_FAKE_MONOTONIC": 1}
    changes = CONFIG | {"launch": {"hang_timeout_s": 20, "rendezvous_timeout_s": 20, "max_restarts": 0}}
    with start(tmp_path, changes, processes=2, variables=variables) as process:
        process.wait_for_step(4)
        clock.write_text("+1d")
        process.wait_for_step(9)
        clock.write_text("-1d")
        assert process.wait(60) == 0, process.stderr
        folder = process.run_folder
    assert folder.digest() == undisturbed.digest()
    times = [step["time"] for step in folder.steps()]
    assert max(times) - min(times) > 86400  # checks that the clock jumped


@pytest.mark.clock
def test_an_endless_config_is_refused(tmp_path):
    huge = tmp_path / "huge.json"
    with open(huge, "wb") as file:
        file.truncate(1 << 30)
    begin = time.monotonic()
    for path in (huge, "/dev/zero"):
        refused = run("--config", path, "--dry-run")
        assert refused.returncode == 2 and f"{path}:1:1048577: /: the text is larger than 1 MiB" in refused.stderr
    assert time.monotonic() - begin < 3


@pytest.mark.sweep
def test_a_config_from_a_pipe_that_stays_open_is_refused():
    read_end, write_end = os.pipe()
    os.write(write_end, b'{"epochs": 1')  # followed by neither data nor end of file
    refused = run("--config", "-", "--dry-run", stdin=read_end, expect=2)
    os.close(read_end)
    os.close(write_end)
    assert "<stdin>: received no data for 10 s" in refused.stderr


def test_names_and_data_cannot_inject_lines_or_terminal_escapes(tmp_path):
    name = "data\nmnist-train failed: forged\x1b[31m"
    config = write_config(tmp_path, {"data": {"dataset": "mnist", "root": str(tmp_path / name)}})
    (tmp_path / name).mkdir()
    (tmp_path / name / "mnist").mkdir()
    (tmp_path / name / "mnist" / "train-images-idx3-ubyte").write_bytes(b"no images")
    refused = run("--config", config, "--output", tmp_path / "run", "--nproc-per-node", 2, expect=3)
    assert "\x1b" not in refused.stderr and "\\x1b[31m" in refused.stderr
    assert not [line for line in refused.stderr.splitlines() if line.startswith("mnist-train failed: forged")]


# Makes pidfd_open fail with ENOSYS, as before Linux 5.3 and in some sandboxes, and execs the command that follows.
WITHOUT_PIDFD = [sys.executable, "-c", """
import ctypes, os, struct, sys
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
PIDFD_OPEN, ENOSYS = 434, 38
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
RETURN_ERROR, ALLOW = 0x00050000 | ENOSYS, 0x7fff0000
filter = b"".join(struct.pack("HBBI", *line) for line in (
    (LOAD_NUMBER, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, PIDFD_OPEN), (RETURN, 0, 0, RETURN_ERROR), (RETURN, 0, 0, ALLOW)))
kept = ctypes.create_string_buffer(filter, len(filter))
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(kept))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""]


def test_without_pidfds_our_launcher_detects_a_killed_rank(tmp_path, undisturbed):
    config = write_config(tmp_path, {**CONFIG, "launch": {"max_restarts": 1}})
    command = [*WITHOUT_PIDFD, *train_command(config, tmp_path / "run", 2)]
    with Process(command, tmp_path, tmp_path / "run") as process:
        process.wait_for_step(6)
        send(process.ranks()[1], signal.SIGKILL)
        assert process.wait() == 0, process.stderr
        assert process.run_folder.summary()["restarts"] == 1
        assert process.run_folder.digest() == undisturbed.digest()


def test_without_pidfds_the_other_ranks_detect_a_killed_rank(tmp_path):
    changes = {**CONFIG, "epochs": 1000, "launch": {"hang_timeout_s": 100}}
    with workers(tmp_path, changes, before=WITHOUT_PIDFD) as (first, second):
        first.wait_for_step(6)
        killed_s = time.monotonic()
        send(second.pid, signal.SIGKILL)
        assert first.wait() == 4, first.stderr
        assert time.monotonic() - killed_s < 10
        assert "rank 1" in first.stderr


@pytest.mark.parametrize("asked, spins, tunables", [
    ({}, ":GOMP_SPINCOUNT=1000:", "glibc.malloc.hugetlb=1"),
    ({"GOMP_SPINCOUNT": "7", "GLIBC_TUNABLES": "glibc.malloc.perturb=1"}, ":GOMP_SPINCOUNT=7:",
     "glibc.malloc.perturb=1:glibc.malloc.hugetlb=1"),
    ({"OMP_WAIT_POLICY": "active", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, None, "glibc.malloc.hugetlb=0")])
def test_threads_spin_briefly_and_ranks_use_huge_pages_unless_the_user_overrides_that(tmp_path, monkeypatch, asked, spins, tunables):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    with start(tmp_path, CONFIG | {"epochs": 50}, processes=1, variables=asked) as process:
        rank = process.wait_for_ranks(1)[0]
        # glibc splits the value of GLIBC_TUNABLES at colons in place.
        variables = ":" + Path(f"/proc/{rank}/environ").read_text().replace("\0", ":")
        assert spins in variables if spins else ":GOMP_SPINCOUNT=" not in variables
        assert f":GLIBC_TUNABLES={tunables}:" in variables
        process.stop(signal.SIGTERM, 143)
