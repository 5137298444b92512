"""Weights that others read, and weights of others that are read here: none of them may do harm."""

import json
import os
import pickle
import struct
import subprocess
import time
import zipfile
from collections import OrderedDict

import numpy
import pytest
from pictures import write_png
from support import BINARY, environment, import_torch, read_mnist, run, train, write_config

torch = import_torch()

from safetensors_file import read_safetensors, write_safetensors  # noqa: E402  (needs torch)
from torch_models import Net  # noqa: E402

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
    """Loss and accuracy by PyTorch's own means."""
    images, labels = map(torch.from_numpy, read_mnist("t10k", SAMPLES))
    model = Net()
    model.load_state_dict(state_dict, strict=True)
    with torch.no_grad():
        output = model.eval()(images)
    loss = torch.nn.functional.nll_loss(output, labels).item()
    return loss, (output.argmax(1) == labels).sum().item() / SAMPLES


def evaluate(path, config):
    result = run("evaluate", "--checkpoint", path, "--config", config, expect=0)
    return json.loads(result.stdout)


def export(source, target, form="pt"):
    return run("export", "--checkpoint", source, "--format", form, "--output", target)


def load(path):
    return torch.load(path, weights_only=True)


def same_tensors(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


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


def test_every_kind_of_weights_evaluates_alike(tmp_path, trained, config):
    summary = trained.summary()
    expected = {"test_loss": pytest.approx(summary["test_loss"], rel=1e-6), "test_accuracy": summary["test_accuracy"],
                "samples": SAMPLES}
    torch.save(load(trained.path / "model.pt"), tmp_path / "by_pytorch.pt")
    write_safetensors(tmp_path / "by_hand.safetensors", load(trained.path / "model.pt"))
    for path in (trained.checkpoints()[-1], trained.path / "model.pt", tmp_path / "by_pytorch.pt",
                 tmp_path / "by_hand.safetensors"):
        figures = evaluate(path, config)
        assert {name: figures[name] for name in expected} == expected, path


def test_a_checkpoint_is_a_safetensors_file_with_momentum_and_progress(trained):
    tensors, metadata = read_safetensors(trained.checkpoints()[-1])
    weights = load(trained.path / "model.pt")
    assert same_tensors({name: tensors["model." + name] for name in weights}, weights)
    assert all(tensors[f"optimizer.momentum_buffer.{name}"].shape == tensor.shape for name, tensor in weights.items())
    assert json.loads(metadata["mnist-train.state"])["progress"]["samples_seen"] == 2 * 2560


@pytest.mark.parametrize("key", ["model_state_dict", "state_dict", "model"])
def test_the_weights_of_a_training_state_of_python_are_taken(tmp_path, trained, config, key):
    model = Net()
    model.load_state_dict(load(trained.path / "model.pt"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loss = model(torch.zeros(1, 1, 28, 28)).sum()
    loss.backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model.load_state_dict(load(trained.path / "model.pt"))
    path = tmp_path / "training.pt"
    torch.save({"epoch": 3, "best": 0.5, "loss": loss, "names": ["a", None, True], key: model.state_dict(),
                "optimizer_state_dict": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, path)
    assert evaluate(path, config) == evaluate(trained.path / "model.pt", config)
    image = write_png(tmp_path / "image.png", numpy.zeros((28, 28), numpy.uint8))
    run("predict", "--checkpoint", path, "--config", config, image, expect=0)


def test_an_export_with_the_optimizer_is_read_again(tmp_path, trained, config):
    path = tmp_path / "training.pt"
    run("export", "--checkpoint", trained.checkpoints()[-1], "--with-optimizer", "--output", path, expect=0)
    assert evaluate(path, config) == evaluate(trained.path / "model.pt", config)
    begun = train(tmp_path, {"max_steps": 1, "learning_rate": 1e-40, "model": {"weights": str(path)}})
    expected = load(trained.path / "model.pt")
    assert all(abs(begun.weights()[name] - tensor.numpy()).max() < 1e-30 for name, tensor in expected.items())


def test_no_run_resumes_from_weights_alone(tmp_path, trained):
    config = write_config(tmp_path, {"data": {"limit_train": 2560, "limit_test": SAMPLES}})
    export(trained.checkpoints()[-1], tmp_path / "weights.safetensors", "safetensors")
    for weights in (trained.path / "model.pt", tmp_path / "weights.safetensors"):
        refused = run("--config", config, "--output", tmp_path / "run", "--resume", weights, expect=5)
        assert f"{weights}: holds weights alone" in refused.stderr and "model.weights" in refused.stderr


def test_export_writes_the_weights_of_a_checkpoint_in_both_formats(tmp_path, trained, config):
    weights = load(trained.path / "model.pt")
    pt, safetensors = tmp_path / "weights.pt", tmp_path / "weights.safetensors"
    for source in (trained.checkpoints()[-1], trained.path / "model.pt"):
        for form, target in (("pt", pt), ("safetensors", safetensors)):
            result = export(source, target, form)
            assert result.returncode == 0, result.stderr
        assert same_tensors(load(pt), weights)
        assert same_tensors(read_safetensors(safetensors)[0], weights)
        pt.unlink()
    assert evaluate(safetensors, config)["test_accuracy"] == trained.summary()["test_accuracy"]


# What PyTorch saves in many forms is read in all of them


def test_forms_that_pytorch_saves_are_read(tmp_path, trained, config):
    weights = load(trained.path / "model.pt")
    model = Net()
    model.load_state_dict(weights)
    transposed = OrderedDict((name, tensor.t().contiguous().t() if tensor.dim() == 2 else tensor)
                             for name, tensor in weights.items())
    channels_last = {name: tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
                     for name, tensor in weights.items()}
    together = torch.cat([tensor.flatten() for tensor in weights.values()])
    views, begin = {}, 0
    for name, tensor in weights.items():
        views[name] = together[begin:begin + tensor.numel()].view_as(tensor)
        begin += tensor.numel()
    forms = {
        "of a module": model.state_dict(),
        "parameters": dict(model.named_parameters()),
        "strided": transposed,
        "channels last": channels_last,
        "views of one storage": views,
        "in another order": dict(reversed(weights.items())),
        "fp64": {name: tensor.double() for name, tensor in weights.items()},
    }
    for name, form in forms.items():
        torch.save(form, tmp_path / "form.pt")
        result = export(tmp_path / "form.pt", tmp_path / "out.pt")
        assert result.returncode == 0, f"{name}: {result.stderr}"
        out = load(tmp_path / "out.pt")
        assert all(torch.equal(out[key].float(), weights[key]) for key in weights), name
    assert evaluate(tmp_path / "form.pt", config)["test_accuracy"] == trained.summary()["test_accuracy"]


# Weights that do not fit


def test_weights_that_are_not_there_are_named(tmp_path, config):
    path = tmp_path / "none.pt"
    for arguments in (("evaluate", "--checkpoint", path, "--config", config),
                      ("export", "--checkpoint", path, "--output", tmp_path / "out.pt"),
                      ("--config", config, "--output", tmp_path / "a", "--set", f"model.weights={path}"),
                      ("--config", config, "--output", tmp_path / "b", "--resume", path)):
        result = run(*arguments, expect=5)
        assert str(path) in result.stderr


# Hostile files. They are exported, which reads all of them and needs no data.


class Command:
    """What a pickle can do to whoever loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Storage:
    def __init__(self, claimed, kind=torch.FloatStorage, key="0"):
        self.claimed, self.kind, self.key = claimed, kind, key


class Tensor:
    def __init__(self, storage, sizes, strides, offset=0):
        self.arguments = (storage, offset, sizes, strides, False, OrderedDict())

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self.arguments


class StatePickler(pickle.Pickler):
    def persistent_id(self, value):
        return ("storage", value.kind, value.key, "cpu", value.claimed) if isinstance(value, Storage) else None


def write_pt(path, state, data=b"\0" * 16, compression=zipfile.ZIP_STORED):
    """What torch.save would write for `state`, true or not."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        with archive.open("archive/data.pkl", "w") as file:
            StatePickler(file, protocol=2).dump(state)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data/0", data)


def export_with_peak(source, target):
    """(exit code, stderr, seconds, peak resident bytes of the command and its process)."""
    begin = time.monotonic()
    stderr_path = str(target) + ".stderr"
    with open(stderr_path, "wb") as stderr:
        process = subprocess.Popen([BINARY, "export", "--checkpoint", source, "--format", "pt", "--output", target],
                                   stdin=subprocess.DEVNULL, stderr=stderr, env=environment())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    with open(stderr_path, errors="replace") as stderr:
        return process.returncode, stderr.read(), time.monotonic() - begin, usage.ru_maxrss * 1024


def write_archive(path, code):
    """A pickle's code as torch.save would store it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", code)
        archive.writestr("archive/data/0", bytes(16))


def touching(path):
    return Command(path.parent / "touched")


def write_safetensors_header(path, text, length=None):
    path.write_bytes(struct.pack("<Q", length or len(text)) + text + bytes(64))


MIB = 2**20
# Lists of lists by reference: 2^60 elements for whoever copies them.
MEMO_BOMB = b"\x80\x02]q\x00" + b"".join(
    b"]q" + bytes([number + 1]) + 2 * (b"h" + bytes([number]) + b"a") for number in range(60)) + b"."
HOSTILE = {  # tests/checkpoint has more, without looking at memory
    "a command": lambda path: path.write_bytes(pickle.dumps(touching(path), protocol=2)),
    "a command beside tensors": lambda path: write_pt(
        path, OrderedDict([("w", Tensor(Storage(4), (4,), (1,))), ("x", touching(path))])),
    "a storage larger than the file": lambda path: write_pt(path, {"w": Tensor(Storage(2**40), (2**40,), (1,))}),
    "a giant by strides of zero": lambda path: write_pt(path, {"w": Tensor(Storage(4), (2**40,), (0,))}),
    "many tensors of one storage": lambda path: write_pt(
        path, {f"w{number}": Tensor(Storage(MIB), (MIB,), (1,)) for number in range(1000)}, bytes(4 * MIB)),
    "a zip bomb": lambda path: write_pt(path, {"w": Tensor(Storage(128 * MIB), (128 * MIB,), (1,))}, bytes(512 * MIB),
                                        zipfile.ZIP_DEFLATED),
    "deep nesting": lambda path: write_archive(path, b"\x80\x02" + b"(" * 3_000_000 + b"."),
    "a memo bomb": lambda path: write_archive(path, MEMO_BOMB),
    "a giant header": lambda path: write_safetensors_header(path, b"{}", 2**62),
    "giant tensors": lambda path: write_safetensors_header(
        path, b'{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'),
}


@pytest.fixture(scope="module")
def harmless_peak(tmp_path_factory):
    """Also shows that what the hostile files are made of is read when it is true."""
    folder = tmp_path_factory.mktemp("harmless")
    write_pt(folder / "honest.pt", {"w": Tensor(Storage(4), (2, 2), (2, 1))})
    code, stderr, _, peak = export_with_peak(folder / "honest.pt", folder / "out.pt")
    assert code == 0, stderr
    assert torch.equal(load(folder / "out.pt")["w"], torch.zeros(2, 2))
    return peak


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_quickly_and_does_nothing(tmp_path, harmless_peak, name):
    path = tmp_path / "hostile.pt"
    HOSTILE[name](path)
    code, stderr, seconds, peak = export_with_peak(path, tmp_path / "out.pt")
    assert code == 5, stderr
    assert str(path) in stderr
    assert len(stderr) < 2000
    assert seconds < 10
    assert peak < harmless_peak + path.stat().st_size + 64 * 2**20
    assert not (tmp_path / "touched").exists()
    assert not (tmp_path / "out.pt").exists()
