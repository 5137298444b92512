"""Reads a run's event file with the reader and the server of the real TensorBoard."""

import json
import subprocess
import time
import urllib.request

import pytest
from python_tools import NEEDED, PYTHON, run_python
from support import environment, free_port, train

pytestmark = NEEDED

CHANGES = {"epochs": 2, "log_interval": 5, "data": {"limit_train": 1280, "limit_test": 500}, "report": {"histograms": True}}

READER = r"""
import json, sys
from tensorboard.backend.event_processing import event_accumulator
unlimited = {name: 0 for name in ("scalars", "histograms")}
events = event_accumulator.EventAccumulator(sys.argv[1], unlimited).Reload()
tags = events.Tags()
print(json.dumps({
    "scalars": {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in tags["scalars"]},
    "histograms": {tag: [(one.step, one.histogram_value.num) for one in events.Histograms(tag)]
                   for tag in tags["histograms"]},
}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run"), CHANGES)


@pytest.fixture(scope="module")
def events(run):
    return json.loads(run_python("-c", READER, run.path).stdout)


def test_tensorboards_reader_finds_every_scalar(run, events):
    assert set(events["scalars"]) == {
        "step/loss", "step/accuracy", "step/learning_rate", "step/samples_per_second", "loss/train", "loss/test", "accuracy/train",
        "accuracy/test", "balanced_accuracy/test", "top5_accuracy/test", "seconds/train", "seconds/test"}
    assert events["scalars"]["accuracy/test"] == [
        [line["step"], pytest.approx(line["test_accuracy"], rel=1e-6)] for line in run.epochs()]
    assert events["scalars"]["step/loss"] == [
        [line["step"], pytest.approx(line["loss"], rel=1e-6)] for line in run.steps()]


def test_tensorboards_reader_finds_histograms(run, events):
    assert [step for step, _ in events["histograms"]["weights/conv1.weight"]] == [line["step"] for line in run.epochs()]
    assert {count for _, count in events["histograms"]["gradients/fc1.weight"]} == {800 * 500}


def test_tensorboards_server_shows_the_run(run):
    port = free_port()
    server = subprocess.Popen([PYTHON, "-m", "tensorboard.main", "--logdir", run.path, "--port", str(port), "--host", "127.0.0.1"],
                              env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        tags = {}
        while not tags and time.monotonic() < deadline:
            time.sleep(0.2)
            try:
                address = f"http://127.0.0.1:{port}/data/plugin/scalars/tags"
                tags = json.load(urllib.request.urlopen(address, timeout=5))
            except OSError:
                pass
        assert "accuracy/test" in tags["."]
    finally:
        server.terminate()
        server.wait(30)
