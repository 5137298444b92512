"""`doctor` checks the real machine, starts real workers, and fails if a run would fail."""

import json
import re

import pytest
from support import run


def findings(result):
    return {finding["topic"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_a_machine_that_can_train_has_no_problems(tmp_path):
    """Even if two processes could not run the config, and an agent of torchrun would serve their store."""
    healthy = run("doctor", "--json", "--set", "device=cpu", "--set", "deterministic.shards=1", folder=tmp_path,
                  variables={"TORCHELASTIC_USE_AGENT_STORE": "True"}, expect=0)
    assert json.loads(healthy.stdout)["problems"] == 0
    topics = findings(healthy)
    for topic in ("program", "processor", "memory", "shared memory", "NCCL", "ports", "run folder", "a run here", "LibTorch"):
        assert topics[topic]["verdict"] in ("ok", "note", "warning"), topics[topic]
        assert topics[topic]["text"]
    for finding in topics.values():
        assert finding["remedy"] or finding["verdict"] in ("ok", "note"), finding
    assert re.fullmatch(r"2 processes on CPUs: gloo: [\d.]+ ms, .*/s", topics["all-reduce"]["text"])


@pytest.mark.parametrize("flags", [("--set", 'launch.devices=["cuda:63"]'), ("--config", "mixup_image_folder", "--nproc-per-node", 3)])
def test_the_cause_of_a_failure_is_reported_with_a_remedy(tmp_path, flags):
    finding = findings(run("doctor", "--json", *flags, folder=tmp_path, expect=1))["a run here"]
    assert finding["verdict"] == "problem"
    assert finding["remedy"]
