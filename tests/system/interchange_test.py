"""Weights of all four models go to Python and come back, in both formats, and so does the optimizer's state."""

import json

import pytest
from support import import_torch, read_mnist, run, train, write_config

torch = import_torch()

from safetensors_file import read_safetensors, write_safetensors  # noqa: E402  (needs torch)
from torch_models import MODELS, Net, training  # noqa: E402

torch.set_num_threads(1)  # more wait for one another where something else runs

# The last one takes a hundred times as long as the others.
SAMPLES = {"net": 500, "mlp": 500, "lenet": 500, "resnet18": 40}
TRAINED_ON = {"net": 1280, "mlp": 1280, "lenet": 1280, "resnet18": 16}
BATCH = {"net": 64, "mlp": 64, "lenet": 64, "resnet18": 8}


def changes_for(name, **others):
    return {"epochs": 1, "batch_size": BATCH[name], "model": {"name": name},
            "data": {"limit_train": TRAINED_ON[name], "limit_test": SAMPLES[name]}, "test_batch_size": 100, **others}


def evaluate_in_python(model, name):
    images, labels = map(torch.from_numpy, read_mnist("t10k", SAMPLES[name]))
    with torch.no_grad():
        output = model.eval()(images)
    return (output.argmax(1) == labels).sum().item() / SAMPLES[name]


@pytest.mark.parametrize("name", ["net", "resnet18"])
def test_what_is_trained_here_gives_the_same_accuracy_in_python(tmp_path, name):
    folder = train(tmp_path, changes_for(name))
    exported = tmp_path / "weights.safetensors"
    run("export", "--checkpoint", folder.checkpoints()[-1], "--format", "safetensors", "--output", exported, expect=0)
    for weights in (torch.load(folder.path / "model.pt", weights_only=True), read_safetensors(exported)[0]):
        model = MODELS[name]()
        model.load_state_dict(weights, strict=True)
        assert evaluate_in_python(model, name) == pytest.approx(folder.summary()["test_accuracy"], abs=0.00005)


def test_what_is_trained_in_python_gives_the_same_accuracy_here(tmp_path):
    name = "lenet"
    torch.manual_seed(3)
    model = MODELS[name]()
    images, labels = map(torch.from_numpy, read_mnist("train", 4 * BATCH[name]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in training(model, optimizer, zip(images.split(BATCH[name]), labels.split(BATCH[name]))):
        pass
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    write_safetensors(tmp_path / "weights.safetensors", model.state_dict())
    expected = evaluate_in_python(model, name)
    config = write_config(tmp_path, changes_for(name, launch={"processes_per_node": 1}))
    for form in ("pt", "safetensors"):
        result = run("evaluate", "--checkpoint", tmp_path / f"weights.{form}", "--config", config, expect=0)
        assert json.loads(result.stdout)["test_accuracy"] == pytest.approx(expected, abs=0.00005)


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_training_starts_from_pythons_weights(tmp_path, form):
    torch.manual_seed(5)
    model = Net()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    write_safetensors(tmp_path / "weights.safetensors", model.state_dict())
    changes = {"batch_size": 100, "max_steps": 1, "data": {"limit_train": 100, "limit_test": 10},
               "model": {"name": "net", "weights": str(tmp_path / f"weights.{form}")}}
    images, labels = map(torch.from_numpy, read_mnist("train", 100))
    expected = torch.nn.functional.nll_loss(model(images), labels).item()
    assert train(tmp_path, changes).steps()[0]["loss"] == pytest.approx(expected, rel=1e-5)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.1),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.5),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.5, weight_decay=0.5),
}


CONTINUED = [
    ("net", "sgd", {"learning_rate": 0.01, "sgd_momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("mlp", "sgd", {"learning_rate": 0.01, "sgd_momentum": 0}),
    ("lenet", "adam", {"learning_rate": 0.001}),
    ("mlp", "adamw", {"learning_rate": 0.001, "weight_decay": 0.1}),
]


@pytest.mark.parametrize("name, optimizer, changes", CONTINUED)
def test_python_continues_where_training_here_stopped(tmp_path, name, optimizer, changes):
    """One batch, so that both see the same samples. The optimizer in Python is made with other hyperparameters: the
    file brings the right ones."""
    samples = BATCH[name]
    changes = {"optimizer": optimizer, "epochs": 2, "batch_size": samples, "model": {"name": name},
               "data": {"limit_train": samples, "limit_test": 10}, **changes}
    folder = train(tmp_path, changes)
    path = tmp_path / "training.pt"
    run("export", "--checkpoint", folder.checkpoints()[-1], "--with-optimizer", "--output", path, expect=0)
    train(tmp_path, {**changes, "epochs": 4}, "--resume", "auto")
    ours = [step["loss"] for step in folder.steps()][2:]

    saved = torch.load(path, weights_only=True)
    assert (saved["epoch"], saved["step"]) == (2, 2)
    model = MODELS[name]()
    model.load_state_dict(saved["model_state_dict"], strict=True)
    python = OPTIMIZERS[optimizer](model.parameters())
    expected_keys = set(python.state_dict()["param_groups"][0])
    assert set(saved["optimizer_state_dict"]["param_groups"][0]) == expected_keys
    python.load_state_dict(saved["optimizer_state_dict"])
    images, labels = map(torch.from_numpy, read_mnist("train", samples))
    losses = list(training(model, python, len(ours) * [(images, labels)]))
    assert ours == pytest.approx(losses, rel=1e-4)


def test_optimizer_state_is_in_checkpoints_alone(tmp_path):
    folder = train(tmp_path, {"max_steps": 1, "data": {"limit_train": 128, "limit_test": 10}})
    result = run("export", "--checkpoint", folder.path / "model.pt", "--with-optimizer", "--output", tmp_path / "x.pt", expect=5)
    assert "model.pt: holds weights alone: --with-optimizer needs a checkpoint" in result.stderr
    result = run("export", "--checkpoint", folder.checkpoints()[-1], "--with-optimizer", "--format", "safetensors",
                 "--output", tmp_path / "x.safetensors")
    assert result.returncode == 2 and "--format pt" in result.stderr
    assert not list(tmp_path.glob("x.*"))
