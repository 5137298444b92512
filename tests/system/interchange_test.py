"""Weights and the state of the optimizer go to Python."""

import pytest
from support import import_torch, read_mnist, run, train

torch = import_torch()

from safetensors_file import read_safetensors  # noqa: E402  (needs torch)
from torch_models import MODELS, training  # noqa: E402

torch.set_num_threads(1)  # more would wait for each other on a busy machine

SAMPLES = 64


def test_what_is_trained_here_gives_the_same_accuracy_in_python(tmp_path):
    """Of `resnet18`; of `net` in weights_test.py."""
    folder = train(tmp_path, {"epochs": 1, "batch_size": 8, "model": {"name": "resnet18"}, "test_batch_size": 100,
                              "data": {"limit_train": 16, "limit_test": 40}})
    exported = tmp_path / "weights.safetensors"
    run("export", "--checkpoint", folder.checkpoints()[-1], "--format", "safetensors", "--output", exported, expect=0)
    images, labels = map(torch.from_numpy, read_mnist("t10k", 40))
    for weights in (torch.load(folder.path / "model.pt", weights_only=True), read_safetensors(exported)[0]):
        model = MODELS["resnet18"]()
        model.load_state_dict(weights, strict=True)
        with torch.no_grad():
            accuracy = (model.eval()(images).argmax(1) == labels).sum().item() / 40
        assert accuracy == pytest.approx(folder.summary()["test_accuracy"], abs=0.00005)


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
    changes = {"optimizer": optimizer, "epochs": 2, "batch_size": SAMPLES, "model": {"name": name},
               "data": {"limit_train": SAMPLES, "limit_test": 10}, **changes}
    folder = train(tmp_path, changes)
    path = tmp_path / "training.pt"
    run("export", "--checkpoint", folder.checkpoints()[-1], "--with-optimizer", "--output", path, expect=0)
    train(tmp_path, {**changes, "epochs": 4}, "--resume", "auto")
    ours = folder.losses()[2:]

    saved = torch.load(path, weights_only=True)
    assert (saved["epoch"], saved["step"]) == (2, 2)
    model = MODELS[name]()
    model.load_state_dict(saved["model_state_dict"], strict=True)
    python = OPTIMIZERS[optimizer](model.parameters())
    assert set(saved["optimizer_state_dict"]["param_groups"][0]) == set(python.state_dict()["param_groups"][0])
    python.load_state_dict(saved["optimizer_state_dict"])
    images, labels = map(torch.from_numpy, read_mnist("train", SAMPLES))
    losses = list(training(model, python, len(ours) * [(images, labels)]))
    assert ours == pytest.approx(losses, rel=1e-4)


def test_optimizer_state_is_in_checkpoints_alone(tmp_path):
    folder = train(tmp_path, {"max_steps": 1, "data": {"limit_train": 128, "limit_test": 10}})
    result = run("export", "--checkpoint", folder.path / "model.pt", "--with-optimizer", "--output", tmp_path / "x.pt", expect=5)
    assert "model.pt: holds weights alone: --with-optimizer needs a checkpoint" in result.stderr
    result = run("export", "--checkpoint", folder.checkpoints()[-1], "--with-optimizer", "--format", "safetensors",
                 "--output", tmp_path / "x.safetensors", expect=2)
    assert "--format pt" in result.stderr
    assert not list(tmp_path.glob("x.*"))
