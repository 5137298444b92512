"""Tests the TensorBoard event file of a run with the reader in events.py."""

import numpy
import pytest

from events import events_of
from support import averaging, read_pt, train

SMALL_RUN = {"epochs": 2, "log_interval": 5, "data": {"limit_train": 1280, "limit_test": 500}}
WITH_HISTOGRAMS = SMALL_RUN | {"report": {"histograms": True}, "model": {"name": "mlp", "hidden": [32]}}


def of(events, tag):
    return [(step, value) for name, _, step, value in events if name == tag]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run"), WITH_HISTOGRAMS, processes=2)


def test_scalars_match_the_metrics(run):
    events = events_of(run.path)
    steps = {"step/loss": "loss", "step/learning_rate": "learning_rate", "step/samples_per_second": "samples_per_second"}
    for tag, key in steps.items():
        assert of(events, tag) == [(line["step"], pytest.approx(line[key], rel=1e-6)) for line in run.steps()]
    epochs = {"loss/train": "train_loss", "loss/test": "test_loss", "accuracy/train": "train_accuracy",
              "accuracy/test": "test_accuracy", "seconds/train": "train_seconds", "seconds/test": "test_seconds"}
    for tag, key in epochs.items():
        assert of(events, tag) == [(line["step"], pytest.approx(line[key], rel=1e-6)) for line in run.epochs()]


def test_histograms_count_every_weight(run):
    events = events_of(run.path)
    for name, weights in read_pt(run.path / "model.pt").items():
        histogram = of(events, f"weights/{name}")[-1][1]
        weights = numpy.asarray(weights, numpy.float64)
        assert histogram["num"] == weights.size == sum(histogram["counts"])
        assert histogram["min"] == weights.min() and histogram["max"] == weights.max()
        assert histogram["sum"] == pytest.approx(weights.sum(), rel=1e-9, abs=1e-9)
        assert histogram["sum_squares"] == pytest.approx((weights ** 2).sum())
        limits = numpy.array(histogram["limits"])
        assert (numpy.diff(limits) > 0).all() and limits[-1] == pytest.approx(weights.max())
        below = (weights.ravel()[None] <= limits[:, None] + 1e-7).sum(axis=1)
        assert numpy.abs(numpy.cumsum(histogram["counts"]) - below).max() <= max(2, 0.001 * weights.size)
        gradient = of(events, f"gradients/{name}")
        assert len(gradient) == 2 and gradient[-1][1]["sum_squares"] > 0


def test_a_run_that_resumes_after_its_last_step_writes_no_gradients(tmp_path):
    changes = WITH_HISTOGRAMS | {"max_steps": 5, "checkpoint": {"every_steps": 5}}
    file = train(tmp_path, changes, output="first").checkpoints()[-1]
    events = events_of(train(tmp_path, changes, "--resume", file, output="second").path)
    assert {name.split("/")[0] for name, kind, *_ in events if "fc1" in name} == {"weights"}


def test_gradient_histograms_do_not_depend_on_the_averaging_strategy(tmp_path):
    shared, flat = (events_of(train(tmp_path, WITH_HISTOGRAMS | averaging(strategy), processes=2, output=strategy).path)
                    for strategy in ("shared_memory", "flat"))
    names = {name for name, *_ in shared if name.startswith("gradients/")}
    assert len(names) == 4
    for name in names:
        assert of(shared, name) == of(flat, name)


def test_a_resumed_run_continues_its_event_file_seamlessly(tmp_path):
    whole = train(tmp_path, SMALL_RUN, output="whole")
    train(tmp_path, SMALL_RUN | {"epochs": 1}, output="parts")
    parts = train(tmp_path, SMALL_RUN, "--resume", "auto", output="parts")
    wanted, found = events_of(whole.path), events_of(parts.path)
    timed = ("seconds/", "step/samples")

    def timeless(events):
        return [event for event in events if not event[0].startswith(timed)]

    assert timeless(found) == timeless(wanted)
    assert [event[:3] for event in found] == [event[:3] for event in wanted]


def test_unwritable_events_do_not_end_the_run(tmp_path):
    (tmp_path / "run" / "events.out.tfevents.1.here.mnist-train").mkdir(parents=True)
    folder = train(tmp_path, SMALL_RUN | {"epochs": 1})
    assert folder.stderr.count("the run continues without TensorBoard's events") == 1
    assert folder.summary()["status"] == "finished"
