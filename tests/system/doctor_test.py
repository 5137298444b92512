"""`doctor` checks the real machine, starts real workers, and fails if a run would fail."""

import json

import numpy
import pytest
from support import own_data, run, write_config, write_idx_folder


def findings(result):
    return {finding["topic"]: finding for finding in json.loads(result.stdout)["findings"]}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return run("doctor", "--json", "--set", "device=cpu", folder=tmp_path_factory.mktemp("doctor"), expect=0)


def test_a_machine_that_can_train_is_well(healthy):
    assert json.loads(healthy.stdout)["problems"] == 0
    topics = findings(healthy)
    for topic in ("program", "processor", "memory", "shared memory", "open files", "NCCL", "ports", "network",
                  "launcher", "run folder", "data: mnist", "a run here", "LibTorch", "all-reduce"):
        assert topics[topic]["verdict"] in ("ok", "note", "warning"), topics[topic]
        assert topics[topic]["text"]
    for finding in topics.values():
        assert finding["remedy"] or finding["verdict"] in ("ok", "note"), finding


def test_two_real_processes_averaged_both_ways(healthy):
    measured = {entry["name"]: entry for entry in findings(healthy)["all-reduce"]["values"]["measured"]}
    assert list(measured) == ["gloo", "shared_memory"]
    for entry in measured.values():
        assert 1e-7 < entry["latency_s"] < 1
        assert entry["bytes_per_second"] == pytest.approx(entry["bytes"] / entry["seconds"])
        assert entry["bytes_per_second"] > 1e7


@pytest.mark.parametrize("topic, settings, variables", [
    ("a run here", ['launch.devices=["cuda:63"]'], {}),
    ("run folder", ["device=cpu", "output=/proc/nothing/run"], {}),
    ("data: fashion-mnist", ["device=cpu", "data.dataset=fashion-mnist"], {}),
    ("network", ["device=cpu"], {"GLOO_SOCKET_IFNAME": "nothing0"}),
    ("MASTER_ADDR", ["device=cpu"], {"MASTER_ADDR": "no-such-host.invalid"}),
    ("launcher", ["device=cpu"], {"RANK": "0"}),
])
def test_each_cause_of_a_failure_is_a_problem_with_a_remedy(tmp_path, topic, settings, variables):
    variables = {"MNIST_TRAIN_DATA": tmp_path, "XDG_CACHE_HOME": tmp_path} | variables
    flags = [flag for setting in settings for flag in ("--set", setting)]
    result = run("doctor", "--json", *flags, folder=tmp_path, variables=variables, expect=1)
    finding = findings(result)[topic]
    assert finding["verdict"] == "problem"
    assert finding["remedy"]


def test_few_open_files_are_a_warning(tmp_path):
    result = run("doctor", "--json", "--set", "device=cpu", folder=tmp_path, before=["prlimit", "--nofile=256:4096"], expect=0)
    assert findings(result)["open files"]["verdict"] == "warning"


def test_data_of_every_format_are_opened(tmp_path):
    idx = write_idx_folder(tmp_path / "idx", numpy.zeros((12, 8, 8), numpy.uint8), numpy.arange(12) % 10)
    for form in ("lmdb", "image-folder"):
        run("convert", "--from", f"idx:{idx}", "--to", f"{form}:{tmp_path / form}", expect=0)
        config = write_config(tmp_path, {"data": own_data(form, tmp_path / form / "train", tmp_path / form / "test")})
        result = run("doctor", "--json", "--config", config, folder=tmp_path, expect=0)
        assert findings(result)["data"]["values"] == {"train": 12, "test": 12}
