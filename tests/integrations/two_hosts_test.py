"""Tests runs on two hosts, emulated by two network namespaces connected by a veth pair. Requires root."""

import os
import shutil
import subprocess
import time
import uuid

import pytest
from support import BINARY, Process, assert_gone, train, write_config

CONFIG = {"batch_size": 45, "data": {"limit_train": 886}, "gradient_averaging": {"strategy": "flat"}}
LONG_RUN = {"epochs": 1000, "data": {"limit_test": 100}, "launch": {"hang_timeout_s": 5}, "checkpoint": {"every_steps": 5}}
PORT = 29450


def ip(*arguments, check=True):
    return subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=check)


def can_make_hosts():
    if os.geteuid() != 0:
        return "network namespaces require root"
    name = f"mt-{uuid.uuid4().hex[:8]}"
    try:
        made = ip("netns", "add", name, check=False)
    except FileNotFoundError:
        return "ip is not installed (Debian package iproute2)"
    if made.returncode != 0:
        return f"cannot create network namespaces: {made.stderr.strip()}"
    cable = ip("-n", name, "link", "add", "mt0", "type", "veth", "peer", "name", "mt1", check=False)
    ip("netns", "del", name)
    return "" if cable.returncode == 0 else f"cannot create a veth pair: {cable.stderr.strip()}"


needs_filter = pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")


pytestmark = pytest.mark.skipif(bool(can_make_hosts()), reason=can_make_hosts())


@pytest.fixture
def hosts():
    """Yields the names of two namespaces with the interface `cable` and the addresses 10.88.77.1 and .2."""
    names = [f"mt-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.88.77.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


def rank_on(host, rank, folder, changes):
    place = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "10.88.77.1",
             "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "cable"}
    command = ["ip", "netns", "exec", host, BINARY, "--config", write_config(folder, changes, f"rank{rank}.json"),
               "--output", folder / "run"]
    return Process(command, folder, folder / "run", place)


def test_two_hosts_give_the_same_weights_as_two_processes_on_one_host(tmp_path, hosts):
    expected = train(tmp_path, CONFIG, processes=2, output="own")
    with rank_on(hosts[1], 1, tmp_path, CONFIG) as second, rank_on(hosts[0], 0, tmp_path, CONFIG) as first:
        assert first.wait() == 0, first.stderr
        assert second.wait() == 0, second.stderr
        assert first.run_folder.digest() == expected.digest()


def test_ranks_listen_only_on_the_configured_interface(tmp_path, hosts):
    with rank_on(hosts[1], 1, tmp_path, LONG_RUN) as second, rank_on(hosts[0], 0, tmp_path, LONG_RUN) as first:
        first.wait_for_step(3)
        for number, host in enumerate(hosts, 1):
            lines = ip("netns", "exec", host, "ss", "-ltnH").stdout.splitlines()
            addresses = {line.split()[3].rsplit(":", 1)[0] for line in lines}
            assert addresses == {f"10.88.77.{number}"}, lines
        assert second.popen.poll() is None


@pytest.mark.clock
@needs_filter
def test_both_hosts_exit_within_the_timeout_if_the_network_is_cut(tmp_path, hosts):
    with rank_on(hosts[1], 1, tmp_path, LONG_RUN) as second, rank_on(hosts[0], 0, tmp_path, LONG_RUN) as first:
        first.wait_for_step(8)
        for host in hosts:  # packets are dropped silently
            ip("netns", "exec", host, "iptables", "-A", "INPUT", "-i", "cable", "-j", "DROP")
        cut_at = time.monotonic()
        for rank in (first, second):
            assert rank.wait(30) == 4, rank.stderr
            assert "mnist-train failed: rank" in rank.stderr and "no progress for 5 s" in rank.stderr
        assert time.monotonic() - cut_at < LONG_RUN["launch"]["hang_timeout_s"] + 3
        for rank in (first, second):
            assert_gone(rank, within_s=2)
        folder = first.run_folder
    assert folder.checkpoints()
