"""Tests the exchange of weights with other programs. checkpoint/pt_file_test.cpp and tensor_file_test.cpp test more malicious files."""

import json
import os
import struct
import zipfile
from collections import OrderedDict

import pytest
from safetensors_file import read_safetensors, write_safetensors
from support import import_torch, own_data, printed_json, read_mnist, run, small_mnist, train, write_config

torch = import_torch()

from torch_models import Net  # noqa: E402  (needs torch)

SAMPLES = 2000


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    changes = {"epochs": 2, "data": {"limit_train": 2560, "limit_test": SAMPLES}}
    return train(tmp_path_factory.mktemp("trained"), changes, processes=2)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    changes = {"data": {"limit_test": SAMPLES}, "launch": {"processes_per_node": 2}}
    return write_config(tmp_path_factory.mktemp("config"), changes)


def torch_evaluation(state_dict):
    """Returns loss and accuracy computed by PyTorch."""
    images, labels = map(torch.from_numpy, read_mnist("t10k", SAMPLES))
    model = Net()
    model.load_state_dict(state_dict, strict=True)
    with torch.no_grad():
        output = model.eval()(images)
    loss = torch.nn.functional.nll_loss(output, labels).item()
    return loss, (output.argmax(1) == labels).sum().item() / SAMPLES


def evaluate(path, config):
    return printed_json("evaluate", "--checkpoint", path, "--config", config)


def export(source, target, form="pt"):
    run("export", "--checkpoint", source, "--format", form, "--output", target, expect=0)


def load(path):
    return torch.load(path, weights_only=True)


def same_tensors(one, other):
    return list(one) == list(other) and all(torch.equal(*map(torch.as_tensor, (one[name], other[name]))) for name in one)


def test_pytorch_loads_the_model_strictly_and_gets_the_same_accuracy(trained):
    weights = load(trained.path / "model.pt")
    assert type(weights) is dict
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    loss, accuracy = torch_evaluation(weights)
    summary = trained.summary()
    assert accuracy == pytest.approx(summary["test_accuracy"], abs=0.00005)
    assert loss == pytest.approx(summary["test_loss"], rel=1e-5)
    assert accuracy > 0.6
    assert same_tensors(torch.load(trained.path / "model.pt", weights_only=True, mmap=True), weights)


def test_every_weights_format_gives_the_same_metrics(tmp_path, trained, config):
    summary = trained.summary()
    expected = {"test_loss": pytest.approx(summary["test_loss"], rel=1e-6), "test_accuracy": summary["test_accuracy"], "samples": SAMPLES}
    weights = load(trained.path / "model.pt")
    torch.save({"epoch": 2, "model_state_dict": weights, "optimizer_state_dict": {"state": {}, "param_groups": []}},
               tmp_path / "by_pytorch.pt")
    write_safetensors(tmp_path / "by_hand.safetensors", weights)
    for path in (trained.checkpoints()[-1], trained.path / "model.pt", tmp_path / "by_pytorch.pt", tmp_path / "by_hand.safetensors"):
        metrics = evaluate(path, config)
        assert {name: metrics[name] for name in expected} == expected, path


def test_a_warning_about_weights_is_printed_once_for_all_processes(tmp_path, trained, config):
    torch.save(load(trained.path / "model.pt") | {"other": torch.zeros(1)}, tmp_path / "more.pt")
    arguments = ("evaluate", "--checkpoint", tmp_path / "more.pt", "--config", config, "--nproc-per-node", 2)
    assert run(*arguments, expect=0).stderr.count("ignored 1 tensor") == 1


def test_a_checkpoint_is_a_safetensors_file_with_momentum_and_progress(trained):
    tensors, metadata = read_safetensors(trained.checkpoints()[-1])
    weights = load(trained.path / "model.pt")
    assert same_tensors({name: tensors["model." + name] for name in weights}, weights)
    assert all(tensors[f"optimizer.momentum_buffer.{name}"].shape == tensor.shape for name, tensor in weights.items())
    assert json.loads(metadata["mnist-train.state"])["progress"]["samples_seen"] == 2 * 2560


def test_resuming_from_a_file_with_only_weights_is_refused(tmp_path, trained):
    config = write_config(tmp_path, {"data": {"limit_train": 2560, "limit_test": SAMPLES}})
    export(trained.checkpoints()[-1], tmp_path / "weights.safetensors", "safetensors")
    for weights in (trained.path / "model.pt", tmp_path / "weights.safetensors"):
        refused = run("--config", config, "--output", tmp_path / "run", "--resume", weights, expect=5)
        assert f"{weights}: contains weights but no optimizer state" in refused.stderr and "model.weights" in refused.stderr


def test_export_writes_the_weights_of_a_checkpoint_in_both_formats(tmp_path, trained, config):
    weights = load(trained.path / "model.pt")
    pt, safetensors = tmp_path / "weights.pt", tmp_path / "weights.safetensors"
    for source in (trained.checkpoints()[-1], trained.path / "model.pt"):
        export(source, pt)
        export(source, safetensors, "safetensors")
        assert same_tensors(load(pt), weights)
        assert same_tensors(read_safetensors(safetensors)[0], weights)
        pt.unlink()
    assert evaluate(safetensors, config)["test_accuracy"] == trained.summary()["test_accuracy"]


def test_tensor_layouts_that_pytorch_saves_are_read(tmp_path, trained, config):
    weights = load(trained.path / "model.pt")
    biases = torch.cat([weights[f"{name}.bias"] for name in ("conv1", "conv2", "fc1")])
    form = OrderedDict({  # not in the order of the network
        "fc2.bias": torch.nn.Parameter(weights["fc2.bias"]),
        "fc2.weight": weights["fc2.weight"].double(),
        "fc1.weight": weights["fc1.weight"].t().contiguous().t(),
        "conv2.weight": weights["conv2.weight"].contiguous(memory_format=torch.channels_last),
        "conv1.weight": weights["conv1.weight"],
        "conv1.bias": biases[:20], "conv2.bias": biases[20:70], "fc1.bias": biases[70:],  # views of one storage
    })
    torch.save(form, tmp_path / "form.pt")
    export(tmp_path / "form.pt", tmp_path / "out.pt")
    out = load(tmp_path / "out.pt")
    assert all(torch.equal(out[name].float(), tensor) for name, tensor in weights.items())
    assert evaluate(tmp_path / "form.pt", config)["test_accuracy"] == trained.summary()["test_accuracy"]


def test_errors_about_files_without_weights_name_the_flag_or_key(tmp_path, config):
    path = tmp_path / "text.safetensors"
    for reason in ("cannot open: No such file", "is a text file, not a torch.save file"):
        for origin, *arguments in (("--checkpoint", "evaluate", "--checkpoint", path, "--config", config),
                                   ("--checkpoint", "export", "--checkpoint", path, "--output", tmp_path / "out.pt"),
                                   ("--weights", "init", tmp_path, "--weights", path),
                                   (": /model/weights:", "--config", config, "--output", tmp_path / "a", "--set", f"model.weights={path}"),
                                   ("--resume", "--config", config, "--output", tmp_path / "b", "--resume", path)):
            result = run(*arguments, expect=5)
            assert f"{origin} {path}: {reason}" in result.stderr, (arguments, result.stderr)
        path.write_text("no weights")


def test_a_malicious_file_is_refused_quickly_without_side_effects(tmp_path):
    class Command:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'touched'}",)

    torch.save(OrderedDict(w=torch.zeros(4), x=Command()), tmp_path / "command.pt")
    # Lists nested by reference: if copied, they would have 2^60 elements.
    bomb = b"\x80\x02]q\x00" + b"".join(b"]q" + bytes([n + 1]) + 2 * (b"h" + bytes([n]) + b"a") for n in range(60)) + b"."
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w") as archive:
        archive.writestr("archive/data.pkl", bomb)
    (tmp_path / "giant.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}" + bytes(64))
    for name in ("command.pt", "bomb.pt", "giant.safetensors"):
        refused = run("export", "--checkpoint", tmp_path / name, "--output", tmp_path / "out.pt", timeout=10, expect=5)
        assert name in refused.stderr and len(refused.stderr) < 2000
    assert not (tmp_path / "touched").exists() and not (tmp_path / "out.pt").exists()


def test_a_run_warns_of_weights_for_classes_with_other_names(tmp_path):
    run("convert", "--from", f"idx:{small_mnist().name}/mnist", "--to", f"image-folder:{tmp_path / 'digits'}", expect=0)
    first = train(tmp_path, {"max_steps": 1}, output="first")
    changes = {"max_steps": 1, "model": {"weights": str(first.path)},
               "data": own_data("image-folder", tmp_path / "digits" / "train", tmp_path / "digits" / "test")}
    assert "trained for the classes" not in train(tmp_path, changes, output="same").stderr  # MNIST's classes are unnamed
    for part in ("train", "test"):
        (tmp_path / "digits" / part / "0").rename(tmp_path / "digits" / part / "zero")
    warned = train(tmp_path, changes, output="other").stderr
    assert "its last layer was trained for the classes 0, 1, 2, 3, 4 and 5 more, but the data has 1, 2, 3, 4, 5 and 5 more" in warned
