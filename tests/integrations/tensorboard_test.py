"""Reads a run's event file with the reader of the real TensorBoard."""

import json

import pytest
from python_tools import NEEDED, run_python
from support import train

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
    assert events["scalars"]["accuracy/test"] == [[line["step"], pytest.approx(line["test_accuracy"], rel=1e-6)] for line in run.epochs()]
    assert events["scalars"]["step/loss"] == [[line["step"], pytest.approx(line["loss"], rel=1e-6)] for line in run.steps()]


def test_tensorboards_reader_finds_histograms(run, events):
    assert [step for step, _ in events["histograms"]["weights/conv1.weight"]] == [line["step"] for line in run.epochs()]
    assert {count for _, count in events["histograms"]["gradients/fc1.weight"]} == {800 * 500}
