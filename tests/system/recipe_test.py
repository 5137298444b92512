"""Early stopping, and schedules that depend on the evaluation."""

import math

import pytest
from resume_test import same_outcome, stop_by_sigterm
from support import WORLDS, averaging, import_torch, swept, train

torch = import_torch()


def test_plateau_is_that_of_pytorch(tmp_path):
    changes = {"epochs": 8, "learning_rate": 0.2,
               "schedule": {"name": "plateau", "factor": 0.5, "patience": 0, "min_learning_rate": 0.03},
               "data": {"validation": 0.1}}
    folder = train(tmp_path, changes, processes=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, min_lr=0.03)
    rates = []
    for epoch in folder.epochs():
        rates.append(optimizer.param_groups[0]["lr"])
        theirs.step(epoch["validation_loss"])
    assert min(rates) < 0.2
    assert [step["learning_rate"] for step in folder.steps()] == [
        pytest.approx(rates[step["epoch"] - 1], rel=1e-12) for step in folder.steps()]


def epochs_until_stopped(accuracies, patience, min_delta):
    best, bad = -math.inf, 0
    for epoch, accuracy in enumerate(accuracies, 1):
        best, bad = (accuracy, 0) if accuracy > best + min_delta else (best, bad + 1)
        if bad == patience:
            return epoch
    return None


@pytest.mark.parametrize("validation", [0, 0.2])
def test_a_run_that_no_longer_improves_ends_and_says_why(tmp_path, validation):
    changes = {"epochs": 40, "early_stopping": {"patience": 2, "min_delta": 0.01},
               "data": {"limit_train": 1280, "validation": validation}}
    folder = train(tmp_path, changes, processes=2)
    key = "validation_accuracy" if validation else "test_accuracy"
    accuracies = [epoch[key] for epoch in folder.epochs()]
    assert len(accuracies) == epochs_until_stopped(accuracies, 2, 0.01) < 40
    summary = folder.summary()
    assert (summary["status"], summary["ended_by"]) == ("finished", "early_stopping")
    assert f"early_stopping: {key.replace('_', ' ')} has not improved on" in folder.stderr
    assert (folder.path / "model.pt").exists()
    again = train(tmp_path, changes, "--resume", "auto", processes=2)
    assert "finished already" in again.stderr and len(again.epochs()) == len(accuracies)


def test_the_summary_says_what_ended_a_run(tmp_path):
    short = {"data": {"limit_train": 256, "limit_test": 100}}
    for output, changes in (("epochs", {}), ("max_steps", {"max_steps": 1}),
                            ("stop_at_accuracy", {"stop_at_accuracy": 0.01, "epochs": 9})):
        folder = train(tmp_path, short | changes, output=output)
        assert folder.summary()["ended_by"] == output
    assert "stop_at_accuracy: test accuracy" in folder.stderr


PER_EPOCH = 20
DATA = {"batch_size": 45, "data": {"limit_train": 886}}
RECIPES = {
    "plateau": DATA | {"epochs": 30, "early_stopping": {"patience": 3, "min_delta": 0.02}, "learning_rate": 0.04,
                       "schedule": {"name": "plateau", "patience": 0, "factor": 0.5, "warmup_epochs": 0.5}},
    "one_cycle": DATA | {"epochs": 3, "schedule": {"name": "one_cycle", "max_learning_rate": 0.05}},
}


@pytest.mark.parametrize("recipe, processes, strategy", swept(
    [(recipe, *world) for recipe in RECIPES for world in WORLDS],
    [("plateau", 1, "auto"), ("plateau", 2, "shared_memory"), ("one_cycle", 3, "flat")]))
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, recipe, processes, strategy):
    changes = RECIPES[recipe] | averaging(strategy)
    whole = train(tmp_path, changes, processes=processes, output="whole")
    rates = [step["learning_rate"] for step in whole.steps()]
    assert rates[-1] < max(rates)
    assert whole.summary()["ended_by"] == {"plateau": "early_stopping", "one_cycle": "epochs"}[recipe]
    stop_by_sigterm(tmp_path, changes, processes, whole.last_step() - PER_EPOCH // 2)
    same_outcome(train(tmp_path, changes, "--resume", "auto", processes=processes), whole)
