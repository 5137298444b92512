"""Tests stop_at_accuracy, the EMA model, and schedules that depend on the evaluation."""

import pytest
from safetensors_file import read_safetensors
from support import import_torch, printed_json, read_mnist, relative_difference, run, swept, train

torch = import_torch()

from torch_models import MODELS, training  # noqa: E402  (needs torch)

DECAY = 0.6  # the decay warm-up reaches it at step 13
# Per model: samples (all in every batch), steps, test images, tensors to compare, and their relative tolerance. Rounding errors
# grow through twenty batch norms (see surface_test.py), and biases of convolutions before them are almost pure rounding error.
AVERAGED = {"net": (100, 20, 200, "", 1e-3), "resnet18": (32, 2, 20, "running_", 5e-3)}


def averaged_by_pytorch(name, path):
    """Trains from the weights of a file; returns the model and its EMA model by TensorFlow's rule."""
    samples, steps, *_ = AVERAGED[name]
    images, labels = map(torch.from_numpy, read_mnist("train", samples))
    model, average = MODELS[name](), MODELS[name]()
    for each in (model, average):
        each.load_state_dict(torch.load(path, weights_only=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step, _ in enumerate(training(model, optimizer, steps * [(images, labels)]), 1):
        for mean, value in zip(average.state_dict().values(), model.state_dict().values()):
            if value.is_floating_point():
                mean.lerp_(value, 1 - min(DECAY, (1 + step) / (10 + step)))
            else:
                mean.copy_(value)
    return model, average.eval()


@pytest.mark.parametrize("name, processes", swept([("resnet18", 1), ("net", 2)], [("net", 2)]))
def test_the_ema_model_matches_tensorflows_rule(tmp_path, name, processes):
    samples, steps, test_images, compared, tolerance = AVERAGED[name]
    path = tmp_path / "initial.pt"
    torch.manual_seed(7)
    torch.save(MODELS[name]().state_dict(), path)
    model, average = averaged_by_pytorch(name, path)
    folder = train(tmp_path, {
        "epochs": steps, "batch_size": samples, "learning_rate": 0.02, "ema": {"decay": DECAY},
        "checkpoint": {"every_epochs": 0, "keep_best": False}, "model": {"name": name, "weights": str(path)},
        "data": {"limit_train": samples, "limit_test": test_images}}, processes=processes)

    def difference(theirs):
        expected = {key: tensor.numpy() for key, tensor in theirs.state_dict().items() if compared in key}
        return relative_difference({key: folder.weights()[key] for key in expected}, expected)

    assert difference(average) < tolerance < difference(model) / 10
    images, labels = map(torch.from_numpy, read_mnist("t10k", test_images))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(average(images), labels).item()
    assert folder.epochs()[-1]["test_loss"] == pytest.approx(loss, rel=1e-4)


def test_the_ema_model_of_a_short_run_is_close_to_its_weights_and_is_reported(tmp_path):
    folder = train(tmp_path, {"epochs": 3, "ema": {"decay": 0.9999}})
    *_, last = folder.epochs()
    assert last["test_accuracy"] > last["train_accuracy"] - 0.1 > 0.6
    assert "ema: the run evaluates and saves the moving average of the weights (decay 0.9999, lower in the first steps)" in folder.stderr
    assert "The EMA model (decay 0.9999) is evaluated and saved, not the trained weights" in (folder.path / "report.html").read_text()


def test_every_command_uses_the_ema_model_of_a_checkpoint(tmp_path):
    folder = train(tmp_path, {"epochs": 1, "ema": {"decay": 0.9}}, processes=2)
    checkpoint = folder.checkpoints()[-1]
    evaluated = printed_json("evaluate", "--checkpoint", checkpoint, "--nproc-per-node", 1)
    assert evaluated["test_accuracy"] == folder.summary()["test_accuracy"]

    run("export", "--checkpoint", checkpoint, "--output", tmp_path / "exported.pt", expect=0)
    exported = torch.load(tmp_path / "exported.pt", weights_only=True)
    trained, _ = read_safetensors(checkpoint)
    for name, tensor in torch.load(folder.path / "model.pt", weights_only=True).items():
        assert torch.equal(exported[name], tensor), name
        assert not torch.equal(torch.as_tensor(trained["model." + name]), tensor), name


def test_plateau_matches_pytorch(tmp_path):
    changes = {"epochs": 8, "learning_rate": 0.5, "schedule": {"name": "plateau", "factor": 0.5, "patience": 0, "min_learning_rate": 0.03},
               "data": {"validation": 0.1, "limit_train": 1280, "limit_test": 100}}
    folder = train(tmp_path, changes, processes=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, min_lr=0.03)
    rates = []
    for epoch in folder.epochs():
        rates.append(optimizer.param_groups[0]["lr"])
        theirs.step(epoch["validation_loss"])
    assert min(rates) < 0.5
    assert [step["learning_rate"] for step in folder.steps()] == [
        pytest.approx(rates[step["epoch"] - 1], rel=1e-12) for step in folder.steps()]


def test_a_run_ends_with_the_first_epoch_that_reaches_stop_at_accuracy_on_the_validation_set(tmp_path):
    changes = {"epochs": 4, "data": {"validation": 0.2, "limit_train": 1280}}
    accuracies = [epoch["validation_accuracy"] for epoch in train(tmp_path, changes, processes=2, output="whole").epochs()]
    reached = accuracies.index(max(accuracies)) + 1
    folder = train(tmp_path, changes | {"stop_at_accuracy": max(accuracies) - 1e-6}, processes=2)
    assert len(folder.epochs()) == reached > 1
    assert reached == 4 or folder.summary()["ended_by"] == "stop_at_accuracy"
