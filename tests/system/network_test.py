"""Tests ports, peers and the store: connections from other programs, and messages about lost or slow peers."""

import contextlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from support import (LONG_RUN, assert_gone, averaging, free_port, merged, require_torchrun, send, start, swept, train,
                     wait_until, worker, workers)

BUSY_S = 10  # added to timeouts, for loaded machines
CONFIG = {"batch_size": 45, "data": {"limit_train": 886, "limit_test": 100}}


NOISES = [lambda draw: draw.randbytes(draw.randrange(1, 4096)), lambda _: bytes(8192),
          lambda _: b"\xff" * 8192,  # maximum lengths and counts
          lambda _: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"]


def disturb(process, ended, held):
    """Sends garbage to all ports of a run, and keeps half of the connections open."""
    draw = random.Random(1)
    while not ended.is_set():
        for port in process.listening():
            with contextlib.suppress(OSError):  # a rank closed the connection
                stranger = socket.create_connection(port, timeout=1)
                stranger.sendall(draw.choice(NOISES)(draw))
                if draw.random() < 0.5 and len(held) < 200:
                    held.append(stranger)
                else:
                    stranger.close()


def test_garbage_on_the_ports_changes_nothing(tmp_path):
    """Garbage is sent from before the rendezvous until the run ends."""
    changes = merged(CONFIG, averaging("flat") | {"epochs": 4})
    expected = train(tmp_path, changes, processes=2, output="undisturbed")
    ended, held = threading.Event(), []
    with start(tmp_path, changes, processes=2, output="disturbed") as process:
        process.wait_for_ranks(2)
        disturber = threading.Thread(target=disturb, args=(process, ended, held))
        disturber.start()
        try:
            assert process.wait() == 0, process.stderr
        finally:
            ended.set()
            disturber.join()
            for stranger in held:
                stranger.close()
    assert len(held) > 10
    assert process.run_folder.losses() == expected.losses()


def slowed(process, pid, stop):
    """Slows a process down to a third of its speed."""
    while not stop.is_set():
        send(pid, signal.SIGSTOP)
        time.sleep(0.02)
        send(pid, signal.SIGCONT)
        time.sleep(0.01)


@pytest.mark.clock
@pytest.mark.sweep
def test_a_slow_rank_is_reported_and_the_weights_are_the_same(tmp_path):
    # Steps take several milliseconds and are slowed down for more than ten seconds.
    changes = LONG_RUN | {"max_steps": 1000}
    expected = train(tmp_path, changes, processes=2, output="undisturbed")
    assert "is slow" not in expected.stderr
    with start(tmp_path, changes, processes=2, output="slow") as process:
        process.wait_for_step(2)
        stop = threading.Event()
        brake = threading.Thread(target=slowed, args=(process, process.ranks()[1], stop))
        brake.start()
        try:
            assert process.wait() == 0, process.stderr
        finally:
            stop.set()
            brake.join()
        assert process.stderr.count("warning: rank 1 is slow") == 1, process.stderr
        assert "rank 0 is slow" not in process.stderr
        assert process.run_folder.digest() == expected.digest()


@pytest.mark.clock
@pytest.mark.parametrize("strategy, operation", swept([("flat", "all-reduce"), ("shared_memory", "gradient averaging")],
                                                          [("shared_memory", "gradient averaging")]))
def test_a_hang_is_reported_with_the_ranks_that_wait(tmp_path, strategy, operation):
    changes = merged(LONG_RUN, averaging(strategy) | {"launch": {"hang_timeout_s": 2}})
    with start(tmp_path, changes, processes=3) as process:
        process.wait_for_step(4)
        send(process.ranks()[1], signal.SIGSTOP)
        assert process.wait(2 + BUSY_S) == 4
        assert_gone(process, within_s=2)
        block = process.stderr[process.stderr.index("mnist-train failed"):]
    assert re.search(r"rank 1 has been in .*step \d+ \(epoch \d+\) for \d+ s without progress", block), block
    assert "hang_timeout_s" in block.splitlines()[0], block
    for rank in (0, 2):
        assert re.search(rf"rank {rank}: waited in .*{operation} of step", block), block


def test_a_lost_process_is_detected_even_if_its_parent_does_not_reap_it(tmp_path):
    with workers(tmp_path, LONG_RUN | averaging("flat")) as (first, second):
        first.wait_for_step(3)
        send(second.pid, signal.SIGKILL)  # it stays a zombie
        assert first.wait(10) == 4, first.stderr
        assert "lost another rank" in first.stderr


def test_shared_memory_averaging_detects_a_lost_rank_while_it_waits_for_another(tmp_path):
    changes = merged(LONG_RUN, averaging("shared_memory") | {"launch": {"hang_timeout_s": 60}})
    with workers(tmp_path, changes, 3) as ranks:
        ranks[0].wait_for_step(3)
        send(ranks[0].pid, signal.SIGSTOP)
        send(ranks[1].pid, signal.SIGKILL)
        assert ranks[2].wait(10) == 4, ranks[2].stderr
        assert "the process of rank 1 is gone" in ranks[2].stderr, ranks[2].stderr


@pytest.mark.clock
@pytest.mark.parametrize("strategy", swept(["flat", "shared_memory"], ["shared_memory"]))
def test_without_our_launcher_the_waiting_ranks_report_a_rank_that_hangs(tmp_path, strategy):
    require_torchrun()
    changes = merged(LONG_RUN, averaging(strategy) | {"launch": {"hang_timeout_s": 2}})
    port = free_port()
    with served_store(port), workers(tmp_path, changes, 3, port, variables=AGENT_STORE) as ranks:
        ranks[0].wait_for_step(3)
        send(ranks[2].pid, signal.SIGSTOP)
        for rank in ranks[:2]:
            assert rank.wait(2 + BUSY_S) == 4, rank.stderr
            assert "rank 2 did not respond\n" in rank.stderr, rank.stderr
            assert rank.stderr.count("mnist-train failed") == 1, rank.stderr


@pytest.mark.clock
@pytest.mark.parametrize("strategy", swept(["flat", "shared_memory"], ["shared_memory"]))
def test_without_our_launcher_a_job_continues_after_a_long_suspension(tmp_path, strategy):
    changes = merged(CONFIG, averaging(strategy) | {"epochs": 3, "launch": {"hang_timeout_s": 2}})
    with workers(tmp_path, changes) as ranks:
        ranks[0].wait_for_step(3)
        for rank in ranks:
            rank.send(signal.SIGSTOP)
        time.sleep(3)
        for rank in ranks:
            rank.send(signal.SIGCONT)
            time.sleep(0.5)
        for rank in ranks:
            assert rank.wait() == 0, rank.stderr


# Variables that make a rank use the store of a torchrun agent.
AGENT_STORE = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "any"}
AGENT = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
print("ready", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def served_store(port):
    """Serves a store as a torchrun agent does."""
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout.readline() == "ready\n"
        yield agent
    finally:
        agent.kill()
        agent.wait()


def test_all_ranks_exit_within_the_timeout_if_the_store_dies(tmp_path):
    require_torchrun()
    port = free_port()
    changes = merged(LONG_RUN, {"launch": {"hang_timeout_s": 4}})
    with served_store(port) as agent, workers(tmp_path, changes, 2, port, variables=AGENT_STORE) as ranks:
        ranks[0].wait_for_step(3)
        agent.kill()
        agent.wait()
        died_at = time.monotonic()
        for rank in ranks:
            assert rank.wait(4 + BUSY_S) == 4, rank.stderr
            assert "mnist-train failed: rank" in rank.stderr
        assert time.monotonic() - died_at < 4 + BUSY_S
        assert any("a store check" in rank.stderr for rank in ranks)
        for rank in ranks:
            assert_gone(rank, within_s=BUSY_S)


@pytest.mark.clock
def test_a_job_suspended_during_the_rendezvous_still_starts(tmp_path):
    port = free_port()
    changes = CONFIG | {"launch": {"rendezvous_timeout_s": 3}}
    with worker(tmp_path, 0, port, changes) as first:
        wait_until(lambda: ("127.0.0.1", port) in first.listening(), "the store")
        first.send(signal.SIGSTOP)
        time.sleep(3.5)
        first.send(signal.SIGCONT)
        time.sleep(0.2)
        with worker(tmp_path, 1, port, changes) as second:
            assert first.wait() == 0, first.stderr
            assert second.wait() == 0, second.stderr
