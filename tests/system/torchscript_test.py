"""Tests TorchScript networks: training, resuming, reading the result in Python, and messages for scripts that cannot be trained."""

import itertools
import shutil
import zipfile

import pytest
from fake_gpus import ON_GPU, fake_gpus, needs_fake_gpus
from pictures import write_png
from resume_test import check_that_a_stopped_run_resumes
from support import (averaging, import_torch, merged, mnist_bytes, printed_json, printed_rows, read_mnist,
                     relative_difference, run, train, write_config)

torch = import_torch()
nn = torch.nn

from torch_models import Net  # noqa: E402  (needs torch)

CONFIG = {"epochs": 2, "batch_size": 45, "test_batch_size": 100, "sgd_momentum": 0.5, "checkpoint": {"every_steps": 5},
          "data": {"limit_train": 350, "limit_test": 200}}


class Small(nn.Module):
    """A network with nested modules, running statistics, a buffer, and dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(4))
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(6 * 36, 10)
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, images):
        return self.fc(self.drop(self.body(images)).flatten(1)) * self.scale


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, images):
        return self.fc(images.flatten(1))


def script(model, path):
    torch.jit.script(model).save(str(path))
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    torch.manual_seed(3)
    return script(Small(), tmp_path_factory.mktemp("script") / "small.ts")


def with_script(path, **others):
    return merged(CONFIG, {"model": {"torchscript": str(path)}, **others})


def test_describe_shows_modules_and_parameters(tmp_path, small):
    shown = run("describe", "--config", write_config(tmp_path, with_script(small)), expect=0)
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["images", "[N,1,28,28]"] in rows and ["body", "Sequential"] in rows and ["body.0", "Conv2d", "156", *"weight, bias: rate 0.01, decay 0".split()] in rows
    assert rows[-1] == ["total", "2,338", "–"]

    described = printed_json("describe", "--config", write_config(tmp_path, with_script(small)), "--json")
    assert described["multiply_adds"] is None and described["parameters"] == 2338
    modules = {module["name"]: module for module in described["modules"]}
    assert list(modules) == [name for name, _ in Small().named_modules() if name]
    trained = {"frozen": False, "learning_rate": 0.01, "weight_decay": 0}
    assert modules["fc"] == {"name": "fc", "layer": "Linear", "output": None, "parameters": 2170, "multiply_adds": None,
                             "tensors": [{"name": f"fc.{name}"} | trained for name in ("weight", "bias")]}


@pytest.mark.parametrize("save", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(2, 1, 28, 28))],
                         ids=["script", "trace"])
def test_a_script_trains_like_the_built_in_network(tmp_path, save):
    torch.manual_seed(1)
    net = Net()
    torch.save(net.state_dict(), tmp_path / "first.pt")
    save(net).save(str(tmp_path / "net.ts"))
    changes = merged(CONFIG, {"max_steps": 6})
    built_in = train(tmp_path, merged(changes, {"model": {"weights": str(tmp_path / "first.pt")}}), output="built_in")
    scripted = train(tmp_path, merged(changes, {"model": {"torchscript": "net.ts"}}), processes=3, output="scripted")
    # On some CPUs, different rounding makes max pooling select a different pixel.
    assert relative_difference(scripted.weights(), built_in.weights()) < 5e-4
    assert scripted.losses()[-1] == pytest.approx(built_in.losses()[-1], rel=1e-4)


class Viewed(nn.Module):
    """Fails in the forward or backward pass if images or weights are channels_last."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv, self.fc = nn.GroupNorm(1, 1), nn.Conv2d(1, 6, 5), nn.Linear(6 * 36, 10)

    def forward(self, images):
        return self.fc(torch.max_pool2d(self.conv(self.norm(images)), 4).view(-1, 6 * 36))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tensors_are_contiguous_as_in_python(tmp_path, precision):
    model = Viewed()
    changes = with_script(script(model, tmp_path / "viewed.ts"), epochs=3, precision=precision, data={"limit_train": 45})
    losses = train(tmp_path, changes, processes=1).losses()
    images, labels = map(torch.from_numpy, read_mnist("train", 45))
    assert losses[0] == pytest.approx(nn.functional.cross_entropy(model(images), labels).item(), rel=0.01)
    assert losses[2] < losses[0]


def test_batch_norm_over_one_sample_is_refused_with_advice(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
    changes = with_script(script(model, tmp_path / "model.ts"), data={"limit_train": 46})
    assert "change batch_size" in train(tmp_path, changes, processes=1, expect=1).stderr


def test_a_stopped_run_resumes_bit_identically(tmp_path, small):
    changes = with_script(small, epochs=4, precision="bf16", **averaging("bucketed"))
    assert check_that_a_stopped_run_resumes(tmp_path, changes, 2).summary()["precision"] == "bf16"


def test_a_resumed_run_warns_if_its_script_has_changed(tmp_path, small):
    path = shutil.copy(small, tmp_path)
    train(tmp_path, with_script(path, epochs=1))
    assert "code has changed" not in train(tmp_path, with_script(path, epochs=2), "--resume", "auto").stderr
    script(Small(), path)
    assert "the file with the network's code has changed since" in train(tmp_path, with_script(path, epochs=3), "--resume", "auto").stderr


def test_dropout_differs_by_step_and_seed(tmp_path, small):
    # The only batch has all samples and weights do not change, so losses differ only by dropout.
    changes = with_script(small, learning_rate=0, data={"limit_train": 45})
    losses = [loss for seed in (1, 2) for loss in train(tmp_path, changes | {"seed": seed}, output=f"{seed}").losses()]
    assert len(losses) == 4
    assert all(abs(one - other) > 1e-4 for number, one in enumerate(losses) for other in losses[:number])


def test_python_and_mnist_train_read_the_trained_weights(tmp_path, small):
    folder = train(tmp_path, with_script(small, epochs=4, learning_rate=0.05), processes=2)
    model = torch.jit.load(str(small)).eval()
    model.load_state_dict(torch.load(folder.path / "model.pt", weights_only=True), strict=True)
    Small().load_state_dict(torch.load(folder.path / "model.pt", weights_only=True), strict=True)
    images, labels = map(torch.from_numpy, read_mnist("t10k", 200))
    with torch.no_grad():
        guesses = model(images).argmax(1)
    accuracy = (guesses == labels).sum().item() / 200
    assert folder.read_json("accuracies.json")[-1] == pytest.approx(accuracy) and accuracy > 0.3

    checkpoint = folder.checkpoints()[-1]
    evaluated = printed_json("evaluate", "--checkpoint", checkpoint, "--nproc-per-node", 2)
    assert evaluated["test_accuracy"] == pytest.approx(accuracy)
    files = [write_png(tmp_path / f"{number}.png", digit) for number, digit in enumerate(mnist_bytes("t10k", 3)[0])]
    predicted = printed_rows("predict", "--checkpoint", checkpoint, *files)
    assert [row["guess"] for row in predicted] == guesses[:3].tolist()
    run("export", "--checkpoint", checkpoint, "--format", "pt", "--output", tmp_path / "exported.pt", expect=0)
    assert set(torch.load(tmp_path / "exported.pt", weights_only=True)) == set(model.state_dict())


def test_a_checkpoint_is_refused_if_its_script_is_missing(tmp_path):
    script(Linear(), tmp_path / "linear.ts")
    folder = train(tmp_path, with_script(tmp_path / "linear.ts", max_steps=2))
    (tmp_path / "linear.ts").unlink()
    refused = run("evaluate", "--checkpoint", folder.checkpoints()[-1], expect=2)
    for part in ("/model/torchscript: ", "linear.ts", "No such file", "not its code"):
        assert part in refused.stderr


class TwoInputs(Linear):
    def forward(self, images, others):
        return self.fc(images.flatten(1) + others)


class Tuple(Linear):
    def forward(self, images):
        return self.fc(images.flatten(1)), images


class Transposed(Linear):
    def forward(self, images):
        return self.fc(images.flatten(1)).t()


class Raises(Linear):
    def forward(self, images):
        if images.size(0) < 1000:
            raise ValueError("too few images")
        return self.fc(images.flatten(1))


class NoParameters(nn.Module):
    def forward(self, images):
        return images.flatten(1)[:, :10]


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.fc = nn.Linear(28, 28), nn.Linear(28, 28), nn.Linear(784, 10)
        self.two.weight = self.one.weight

    def forward(self, images):
        return self.fc(self.two(self.one(images)).flatten(1))


class ComputesInFloat(Linear):
    """Fails in bf16 only."""

    def forward(self, images):
        return self.fc(images.flatten(1) * torch.ones(1))


# Name: (model, parts of the message).
REFUSED = {
    "two inputs": (TwoInputs(), ["Tensor images, Tensor others) -> Tensor", "one tensor"]),
    "a tuple": (Tuple(), ["Tensor images) -> ((Tensor, Tensor))"]),
    "a wrong shape": (Transposed(), ["[10, 2]", "[2, 10]"]),
    "an exception": (Raises(), ["ValueError: too few images"]),
    "no parameters": (NoParameters(), ["no parameters"]),
    "two names for one tensor": (Shared(), ["two.weight shares memory with one.weight"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_script_that_cannot_be_trained_is_refused_with_a_reason(tmp_path, case):
    model, parts = REFUSED[case]
    refused = train(tmp_path, with_script(script(model, tmp_path / "model.ts")), expect=2)
    for part in ["/model/torchscript: ", str(tmp_path / "model.ts"), *parts]:
        assert part in refused.stderr
    assert not (tmp_path / "run" / "model.pt").exists()


def test_a_script_that_fails_in_bf16_is_refused_with_advice_to_use_fp32(tmp_path):
    changes = with_script(script(ComputesInFloat(), tmp_path / "model.ts"), max_steps=1)
    refused = train(tmp_path, changes | {"precision": "bf16"}, expect=2)
    assert "BFloat16" in refused.stderr and "set precision to fp32" in refused.stderr
    train(tmp_path, changes, output="fp32")


def test_a_frozen_script_is_refused(tmp_path):
    torch.jit.freeze(torch.jit.script(Linear().eval())).save(str(tmp_path / "frozen.ts"))
    assert "torch.jit.freeze" in train(tmp_path, with_script(tmp_path / "frozen.ts"), expect=2).stderr


def test_sync_batch_norm_with_a_script_is_refused(tmp_path, small):
    refused = train(tmp_path, with_script(small, sync_batch_norm=True), processes=2, expect=2)
    assert "body.1 (BatchNorm2d)" in refused.stderr


class WithBuffers(Linear):
    """Buffers of unusual types, values and strides. Their expected final values need no knowledge of the images."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((10, 10), float("-inf")).triu(1))
        self.register_buffer("used", torch.ones(10, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int16))
        self.register_buffer("every_other", torch.zeros(20)[::2])
        self.register_buffer("repeated", torch.zeros(1).expand(10))

    def forward(self, images):
        if self.training:
            self.count.add_(1)
            self.every_other.add_(1)
        return self.fc(images.flatten(1)) * self.used + self.repeated


@pytest.mark.parametrize("changes", [{}, {"ema": {"decay": 0.5}}, {"deterministic": {"shards": 2}}], ids=str)
def test_buffers_may_have_any_type_value_and_stride(tmp_path, changes):
    path = script(WithBuffers(), tmp_path / "buffers.ts")
    folder = train(tmp_path, with_script(path, max_steps=4, **changes), processes=2)
    train(tmp_path, with_script(path, max_steps=6, **changes), "--resume", "auto", processes=2)
    buffers = torch.load(folder.path / "model.pt")
    assert buffers["count"] == 6 and buffers["used"].all() and buffers["mask"].isneginf().sum() == 45
    average = buffers["every_other"]
    assert (average == average[0]).all() and (4 < average[0] < 6 if "ema" in changes else average[0] == 6)
    (evaluation,) = printed_rows("evaluate", "--checkpoint", folder.path / "model.pt")
    assert evaluation["test_loss"] == pytest.approx(folder.summary()["test_loss"], rel=1e-5)


def broken_files(folder, whole):
    """Yields (name, part of the message) of files that are not complete scripts."""
    def write(name, content):
        (folder / name).write_bytes(content)
        return name
    torch.save(Linear().state_dict(), folder / "state.pt")
    torch.save(Linear(), folder / "pickled.pt")
    (folder / "folder.ts").mkdir()
    yield "missing.ts", "No such file"
    yield "folder.ts", "found a folder"
    yield "state.pt", "not a TorchScript file; create it with torch.jit.script(model).save: "
    yield "pickled.pt", "not a TorchScript file"
    yield write("empty.ts", b""), "not a TorchScript file"
    yield write("text.ts", b"def forward(self, x): return x\n" * 99), "not a TorchScript file"
    yield write("cut.ts", whole[:len(whole) // 2]), "is damaged"
    yield write("last byte.ts", whole[:-1]), "is damaged"


def test_incomplete_scripts_and_other_files_are_refused(tmp_path, small):
    for name, part in broken_files(tmp_path, small.read_bytes()):
        refused = run("--config", write_config(tmp_path, with_script(tmp_path / name)), "--output", tmp_path / "run",
                      "--nproc-per-node", 2, expect=2)
        assert f"/model/torchscript: {tmp_path / name}: " in refused.stderr and part in refused.stderr, refused.stderr


@pytest.mark.sweep
def test_a_damaged_script_does_not_crash_the_program(tmp_path, small):
    whole = small.read_bytes()
    path = tmp_path / "damaged.ts"
    with zipfile.ZipFile(small) as archive:
        parts = [part for part in archive.infolist() if "/data/" not in part.filename]
    for part, fraction in itertools.product(parts, (0, 0.6)):
        position = part.header_offset + int(fraction * part.compress_size)
        path.write_bytes(whole[:position] + bytes(byte ^ 0x55 for byte in whole[position:position + 4]) + whole[position + 4:])
        result = run("--config", write_config(tmp_path, with_script(path, max_steps=1)), "--nproc-per-node", 1, "--output",
                     tmp_path / f"{position}")
        assert result.returncode in (0, 2), f"{part.filename}, {position}: {result.stderr}"


FACTORS = torch.arange(1.0, 11.0)


class WithConstant(Linear):
    def forward(self, images):
        return self.fc(images.flatten(1)) * FACTORS


@needs_fake_gpus
def test_constants_are_moved_to_the_gpu_and_steps_are_eager(tmp_path):
    torch.jit.trace(WithConstant(), torch.zeros(2, 1, 28, 28)).save(str(tmp_path / "constant.ts"))
    changes = with_script(tmp_path / "constant.ts", max_steps=6, **ON_GPU)
    folder = train(tmp_path, changes, processes=2, variables=fake_gpus(2))
    assert folder.summary()["execution"] == "eager"
    refused = train(tmp_path, changes | {"cuda_graphs": "on"}, variables=fake_gpus(1), output="graph", expect=2)
    assert "cannot be captured: the network is external code" in refused.stderr
