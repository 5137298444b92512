"""Tests scripts/chaos with a few runs."""

import chaos
import pytest

pytestmark = pytest.mark.sweep


def test_runs_with_random_faults_end_with_the_same_weights_as_the_undisturbed_run():
    said = []
    assert chaos.run_chaos(runs=5, seed=7, say=said.append) == 0, "\n".join(said)
    assert len(said) == 5


def test_different_weights_are_reported(monkeypatch):
    monkeypatch.setattr(chaos, "disturb", lambda folder, *_: chaos.train(folder, {"max_steps": 3}))
    said = []
    assert chaos.run_chaos(runs=1, seed=7, say=said.append) == 1
    assert "weights differ" in said[0] and "scripts/chaos --seed 7 --only 0" in said[0]
