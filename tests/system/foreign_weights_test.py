"""Reads weights in the formats of training scripts and libraries, from the files that foreign_weights/make.py wrote."""

import json
import re
import zipfile
from pathlib import Path

import numpy
import pytest
from pictures import write_png
from support import import_file, import_torch, printed_rows, run, train, write_config

torch = import_torch()

FOLDER = Path(__file__).parent / "foreign_weights"
make = import_file(FOLDER / "make.py")

READABLE = ["reference.pth", "objects2.pt", "objects4.pt", "objects5.pt", "averaged.pt", "kinds.pt", "lightning.ckpt",
            "timm.pth.tar", "prefixed.safetensors", "extra.safetensors"]


def changes(weights):
    """Returns the config of a run that changes the weights as little as possible."""
    return {"model": {"layers": make.LAYERS, "weights": weights}, "data": {"limit_train": 64, "limit_test": 64},
            "max_steps": 1, "learning_rate": 1e-40}


def model():
    """Returns the PyTorch network with the weights of all files."""
    state = torch.load(FOLDER / "averaged.pt", weights_only=True)
    network = make.Tiny()
    prefix = "module._orig_mod."
    network.load_state_dict({name[len(prefix):]: tensor for name, tensor in state.items() if name.startswith(prefix)})
    return network.eval()


def saved_weights():
    """Returns the parameters, without running statistics, which change in a step."""
    return {name: tensor.detach().numpy() for name, tensor in model().named_parameters()}


def scores_of(weights, tmp_path):
    pixels = numpy.random.default_rng(1).integers(0, 256, (3, 28, 28), numpy.uint8)
    images = [write_png(tmp_path / f"{number}.png", image) for number, image in enumerate(pixels)]
    config = write_config(tmp_path, {"model": {"layers": make.LAYERS}, "data": {"normalize": {"mean": 0, "std": 1}}})
    rows = printed_rows("predict", "--checkpoint", weights, "--config", config, "--json", *images)
    return numpy.log([row["scores"] for row in rows]), torch.from_numpy(pixels[:, None]).float() / 255


@pytest.mark.parametrize("name", READABLE)
def test_weights_of_other_programs_give_the_same_logits_as_pytorch(tmp_path, name):
    ours, pixels = scores_of(FOLDER / name, tmp_path)
    with torch.no_grad():
        theirs = torch.log_softmax(model()(pixels).double(), dim=1).numpy()
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name, ignored", [("lightning.ckpt", "class_weight"), ("extra.safetensors", "aux.weight")])
def test_a_run_starts_from_weights_of_other_programs_and_lists_ignored_tensors(tmp_path, name, ignored):
    begun = train(tmp_path, changes(str(FOLDER / name)))
    for key, value in saved_weights().items():
        assert (begun.weights()[key] == value).all(), key
    assert f"ignored 1 tensor that the model does not have: {ignored}" in begun.stderr
    # If the file has no batch count, only batches of this run are counted.
    assert name != "extra.safetensors" or begun.weights()["bn1.num_batches_tracked"] == 1


def test_a_new_head_is_suggested_and_trains(tmp_path):
    weights = tmp_path / "six.pt"
    six = make.Tiny(classes=6)
    torch.save({"model": six.state_dict()}, weights)
    config = write_config(tmp_path, changes(str(weights)))
    refused = run("--config", config, "--output", tmp_path / "refused", expect=5)
    assert "size mismatch: fc.weight is [6, 3], expected [10, 3]" in refused.stderr
    suggestion = re.search(r'"weights": (\{.*\})', refused.stderr)[1]
    suggested = json.loads(suggestion)
    assert suggested == {"file": str(weights), "new": "head"}
    begun = train(tmp_path, changes(suggested))
    assert (begun.weights()["conv1.weight"] == six.conv1.weight.detach().numpy()).all()
    assert begun.read_json("config.json")["model"]["weights"] == suggested
    again = run("--config", config, "--output", tmp_path / "again", "--set", f"model.weights.file={weights}", "--set",
                "model.weights.new=head", expect=0)
    assert "initialised 2: fc.bias, fc.weight" in again.stderr
    frozen = train(tmp_path, changes(suggested) | {"parameters": [{"match": "head", "frozen": True}]}, output="frozen")
    assert "fc.weight is frozen, but model.weights.new gives it random values" in frozen.stderr
    weights.unlink()
    run("--config", frozen.path / "config.json", "--output", frozen.path, "--resume", "auto", "--set", "max_steps=2", expect=0)
    assert "six.pt" in run("--config", config, "--output", tmp_path / "new", expect=5).stderr


@pytest.mark.parametrize("name, reason", [
    ("whole.pt", 'torch.save(torch.load(OLD, map_location="cpu", weights_only=False).state_dict(), NEW)'),
    ("net.pt", 'torch.save(torch.load(OLD, map_location="cpu", weights_only=False)[KEY], NEW)'),
    ("float8.pt", "fc.weight has the unsupported type torch.float8_e4m3fn"),
])
def test_unreadable_weights_are_refused_with_a_line_of_python_that_converts_them(tmp_path, monkeypatch, name, reason):
    config = write_config(tmp_path, changes(str(FOLDER / name)))
    refused = run("--config", config, "--output", tmp_path / "refused", expect=5)
    assert name in refused.stderr and reason in refused.stderr
    if reason.startswith("torch.save"):
        monkeypatch.setattr("__main__.Tiny", make.Tiny, raising=False)
        exec(reason, {"torch": torch, "OLD": FOLDER / name, "NEW": tmp_path / "new.pt", "KEY": "net"})
        begun = train(tmp_path, changes(str(tmp_path / "new.pt")))
        assert all((begun.weights()[key] == value).all() for key, value in saved_weights().items())


def test_a_checkpoint_in_the_legacy_format_of_torch_save_is_read(tmp_path):
    """Storages are consecutive in this format, so a reader must know the size of each, whatever its type, to find the next."""
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    sum(value.sum() for value in network.parameters()).backward()
    shared = torch.arange(12.0)
    content = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "views": [shared[2:5], shared.view(3, 4).t()],
               "empty": torch.empty(0), "flags": torch.ones(3, dtype=torch.bool), "loss": torch.nn.CrossEntropyLoss()}
    torch.save(content, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    ours, pixels = scores_of(tmp_path / "old.pth", tmp_path)
    with torch.no_grad():
        assert ours == pytest.approx(torch.log_softmax(network(pixels).double(), dim=1).numpy(), rel=1e-5, abs=1e-5)


def test_negated_views_are_refused_by_name(tmp_path):
    negated = {name: torch._neg_view(-value) for name, value in model().state_dict().items()}
    torch.save(negated, tmp_path / "negated.pt")
    refused = run("export", "--checkpoint", tmp_path / "negated.pt", "--format", "safetensors", "--output", tmp_path / "out.safetensors",
                  expect=5)
    assert f"{next(iter(negated))} is a negated or conjugated view" in refused.stderr


def test_a_truncated_file_in_the_legacy_format_of_torch_save_is_refused(tmp_path):
    whole = (FOLDER / "legacy.pt").read_bytes()
    for size in (15, 40, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt").write_bytes(whole[:size])
        refused = run("export", "--checkpoint", tmp_path / "cut.pt", "--format", "safetensors", "--output", tmp_path / "out.safetensors",
                      expect=5)
        assert "cut.pt: cannot read the weights: the " in refused.stderr, size


def test_weights_of_big_endian_machines_are_refused(tmp_path):
    torch.save(model().state_dict(), tmp_path / "little.pt")
    with zipfile.ZipFile(tmp_path / "little.pt") as old, zipfile.ZipFile(tmp_path / "big.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, b"big" if name.endswith("/byteorder") else old.read(name))
    config = write_config(tmp_path, changes(str(tmp_path / "big.pt")))
    refused = run("--config", config, "--output", tmp_path / "refused", expect=5).stderr
    assert "big.pt: cannot read the weights: it was written on a big-endian machine; load and save it in Python" in refused
