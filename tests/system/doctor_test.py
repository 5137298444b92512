"""`doctor` checks the real machine, starts real workers, and fails if a run would fail."""

import json
import re

from support import run


def findings(result):
    return {finding["topic"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_a_machine_that_can_train_has_no_problems(tmp_path):
    healthy = run("doctor", "--json", "--set", "device=cpu", folder=tmp_path, expect=0)
    assert json.loads(healthy.stdout)["problems"] == 0
    topics = findings(healthy)
    for topic in ("program", "processor", "memory", "shared memory", "NCCL", "ports", "run folder", "a run here", "LibTorch"):
        assert topics[topic]["verdict"] in ("ok", "note", "warning"), topics[topic]
        assert topics[topic]["text"]
    for finding in topics.values():
        assert finding["remedy"] or finding["verdict"] in ("ok", "note"), finding
    assert re.fullmatch(r"2 processes on CPUs: gloo: [\d.]+ ms, .*/s", topics["all-reduce"]["text"])


def test_the_cause_of_a_failure_is_reported_with_a_remedy(tmp_path):
    finding = findings(run("doctor", "--json", "--set", 'launch.devices=["cuda:63"]', folder=tmp_path, expect=1))["a run here"]
    assert finding["verdict"] == "problem"
    assert finding["remedy"]
