"""Runs exported networks in other programs: ONNX files in onnxruntime, and generated PyTorch modules in Python."""

import keyword

import numpy
import pytest
from exports import export, exported_module, exported_session, onnx
from support import import_torch, mnist_bytes, own_data, run, swept, train, write_config, write_idx_folder

torch = import_torch()

from torch_networks import LAST, NETWORKS, torch_network  # noqa: E402  (needs torch)

TOLERANCE = 1e-5
BUILT_IN = {  # name: config changes, number of images to compare
    "net": ({"data": {"limit_test": 2000}}, 2000),
    "resnet18": ({"batch_size": 8, "data": {"limit_train": 16, "limit_test": 20}}, 20),
}
SHAPE = (1, 14, 13)
IMAGES = 100


def python_model(source, path, weights, *flags):
    """Returns the network of the exported module, with the weights of a file."""
    model = exported_module(source, path, *flags).make_model()
    model.load_state_dict(torch.load(weights, weights_only=True), strict=True)
    return model.eval()


def torch_logits(model, images):
    with torch.no_grad():
        return torch.cat([model(batch) for batch in torch.from_numpy(images).split(1000)]).numpy()


def onnx_logits(session, images):
    (logits,) = session.run(["logits"], {"images": images})
    return logits


def cross_entropy(logits, labels):
    return torch.nn.functional.cross_entropy(torch.from_numpy(logits).double(), torch.from_numpy(labels)).item()


def assert_exports_compute_the_same(folder, run_folder, pixels, labels, mean, std):
    """Asserts that both exports of a checkpoint give the same logits for all images, and the run's test loss and accuracy."""
    checkpoint = run_folder.checkpoints()[-1]
    images = ((pixels[:, None].astype(numpy.float32) / 255 - mean) / std).astype(numpy.float32)
    model = python_model(checkpoint, folder / "net.py", run_folder.path / "model.pt")
    logits = torch_logits(model, images)
    session = exported_session(checkpoint, folder / "net.onnx")
    # The exported network accepts any batch size.
    for batch in (1, 17, min(1000, len(images))):
        for begin in (0, len(images) - batch):
            part = slice(begin, begin + batch)
            assert abs(onnx_logits(session, images[part]) - logits[part]).max() <= TOLERANCE
    parts = [onnx_logits(session, images[begin:begin + 1000]) for begin in range(0, len(images), 1000)]
    difference = abs(numpy.concatenate(parts) - logits).max()
    print(f"largest difference of logits: {difference:.2e}; largest logit {abs(logits).max():.2f}")
    assert difference <= TOLERANCE
    summary = run_folder.summary()
    assert cross_entropy(logits, labels) == pytest.approx(summary["test_loss"], rel=TOLERANCE)
    assert numpy.mean(logits.argmax(1) == labels) == pytest.approx(summary["test_accuracy"], abs=0.5 / len(labels))


@pytest.mark.parametrize("name", swept(list(BUILT_IN), [name for name in BUILT_IN if name != "resnet18"]))
def test_exported_built_in_networks_compute_the_same_logits(tmp_path, name):
    changes, count = BUILT_IN[name]
    data = {"limit_train": 640, "limit_test": None, "root": None} | changes.get("data", {})
    folder = train(tmp_path, {"epochs": 1} | changes | {"data": data, "model": {"name": name}})
    pixels, labels = mnist_bytes("t10k", count)
    assert_exports_compute_the_same(tmp_path, folder, pixels, labels.astype(numpy.int64), 0.1307, 0.3081)


@pytest.fixture(scope="module")
def small_images(tmp_path_factory):
    """Returns (data section, pixels, labels) for small images that are not square."""
    draw = numpy.random.default_rng(1)
    pixels = draw.integers(0, 256, (IMAGES, *SHAPE[1:]), numpy.uint8)
    labels = numpy.arange(IMAGES) % 10
    folder = write_idx_folder(tmp_path_factory.mktemp("data") / "idx", pixels, labels)
    return own_data("idx", folder, normalize={"mean": 0.4, "std": 0.3}), pixels, labels


def train_layers(folder, layers, data, **changes):
    return train(folder, {"epochs": 1, "batch_size": 25, "data": data, "model": {"layers": layers},
                          "report": {"html": False, "tensorboard": False}, **changes})


@pytest.mark.parametrize("layers", [*NETWORKS.values(), ["flatten", {"name": "dropout", "p": 0.1}, LAST]], ids=[*NETWORKS, "dropout"])
def test_exported_networks_of_layers_compute_the_same_logits(tmp_path, small_images, layers):
    data, pixels, labels = small_images
    folder = train_layers(tmp_path, layers, data)
    assert_exports_compute_the_same(tmp_path, folder, pixels, labels, 0.4, 0.3)
    weights = torch.load(folder.path / "model.pt", weights_only=True)
    assert list(weights) == list(torch_network(layers, SHAPE).state_dict())


def weights_of(build, folder):
    """Writes model.pt with weights initialised by PyTorch; returns the network."""
    torch.manual_seed(1)
    model = build().eval()
    torch.save(model.state_dict(), folder / "model.pt")
    return model


def config_of(folder, layers, data, **others):
    return write_config(folder, {"data": data, "model": {"layers": layers}, **others})


# Windows that extend beyond the image, for which PyTorch and ONNX have different rules
WINDOWS = [
    {"name": "max_pool2d", "kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"name": "max_pool2d", "kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    {"name": "max_pool2d", "kernel_size": 3, "stride": 4, "padding": [1, 0], "dilation": [3, 2], "ceil_mode": True},
    {"name": "max_pool2d", "kernel_size": [4, 3], "stride": 1, "padding": [2, 1], "dilation": 2},
    {"name": "avg_pool2d", "kernel_size": 3, "stride": 2, "padding": 1},
    {"name": "avg_pool2d", "kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    {"name": "avg_pool2d", "kernel_size": [4, 3], "stride": 3, "padding": [2, 1], "ceil_mode": True},
    {"name": "avg_pool2d", "kernel_size": 4, "stride": 3, "ceil_mode": True},
    {"name": "avg_pool2d", "kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True, "count_include_pad": False},
    {"name": "avg_pool2d", "kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    {"name": "max_pool2d", "kernel_size": [16, 16], "stride": 4, "ceil_mode": True},
    {"name": "avg_pool2d", "kernel_size": [19, 17], "stride": 5, "padding": 1, "ceil_mode": True},
    {"name": "adaptive_avg_pool2d", "output_size": [7, 1]},
    {"name": "conv2d", "out_channels": 3, "kernel_size": [4, 2], "padding": "same", "dilation": [1, 3]},
]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{WINDOWS.index(window)}_{window['name']}")
def test_windows_extend_as_far_as_in_pytorch(tmp_path, small_images, window):
    layers = [window, "flatten", {"name": "linear", "out_features": "classes"}]
    model = weights_of(lambda: torch_network(layers, SHAPE), tmp_path)
    config = config_of(tmp_path, layers, small_images[0])
    session = exported_session(tmp_path / "model.pt", tmp_path / "net.onnx", "--config", config)
    images = numpy.random.default_rng(2).standard_normal((20, *SHAPE), numpy.float32)
    assert abs(onnx_logits(session, images) - torch_logits(model, images)).max() <= TOLERANCE


LINEAR = ["flatten", {"name": "linear", "out_features": "classes"}]


def linear_weights(folder):
    weights_of(lambda: torch_network(LINEAR, SHAPE), folder)
    return folder / "model.pt"


def test_an_onnx_file_describes_its_network(tmp_path, small_images):
    weights = linear_weights(tmp_path)
    config = config_of(tmp_path, LINEAR, small_images[0])
    export(weights, "onnx", tmp_path / "net.onnx", "--config", config)
    model = onnx.load(tmp_path / "net.onnx")
    version = run("--version").stdout.split()[1].rstrip(",")
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)
    assert (model.producer_name, model.producer_version) == ("mnist-train", version)
    assert "mean 0.4 and std 0.3" in model.doc_string
    (images,), (logits,) = model.graph.input, model.graph.output
    assert [(value.name, [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim])
            for value in (images, logits)] == [("images", ["N", *SHAPE]), ("logits", ["N", 10])]
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    expected = torch.load(weights, weights_only=True)
    assert list(tensors) == list(expected)
    assert all(numpy.array_equal(tensors[name], tensor.numpy()) for name, tensor in expected.items())


def test_torch_jit_accepts_generated_python_with_whole_numbers(tmp_path, small_images):
    layers = [{"name": "batch_norm", "momentum": 1}, {"name": "leaky_relu", "negative_slope": 0}, "flatten",
              {"name": "dropout", "p": 0}, LAST]
    weights_of(lambda: torch_network(layers, SHAPE), tmp_path)
    config = config_of(tmp_path, layers, small_images[0])
    module = exported_module(tmp_path / "model.pt", tmp_path / "net.py", "--config", config)
    assert torch.jit.script(module.make_model())(torch.zeros(2, *SHAPE)).shape == (2, 10)


def test_the_generated_python_is_readable(tmp_path, small_images):
    layers = [{"name": "conv2d", "as": "stem", "out_channels": 4, "kernel_size": [3, 2], "padding": "same"},
              {"name": "residual", "layers": ["batch_norm", "relu"], "activation": "gelu"},
              {"name": "repeat", "times": 2, "layers": [{"name": "max_pool2d", "kernel_size": 2, "stride": 1}]},
              "adaptive_avg_pool2d", *LINEAR]
    model = weights_of(lambda: torch_network(layers, SHAPE), tmp_path)
    config = config_of(tmp_path, layers, small_images[0])
    exported = python_model(tmp_path / "model.pt", tmp_path / "first.py", tmp_path / "model.pt", "--config", config)
    export(tmp_path / "model.pt", "python", tmp_path / "second.py", "--config", config)
    text = (tmp_path / "first.py").read_text()
    assert text == (tmp_path / "second.py").read_text()
    assert "mean 0.4 and std 0.3" in text and "FlatResidual" not in text
    assert text[text.index("def make_model"):text.index("\n\ndef resize")] == '''def make_model():
    return nn.Sequential(OrderedDict([
        ("stem", nn.Conv2d(1, 4, (3, 2), padding="same")),
        ("1", Residual(
            nn.Sequential(
                nn.BatchNorm2d(4),
                nn.ReLU(),
            ),
            activation=nn.GELU(),
        )),
        ("2", nn.Sequential(
            nn.MaxPool2d(2, stride=1),
            nn.MaxPool2d(2, stride=1),
        )),
        ("3", nn.AdaptiveAvgPool2d(1)),
        ("4", nn.Flatten()),
        ("5", nn.Linear(4, 10)),
    ]))
'''
    images = torch.randn(5, *SHAPE)
    with torch.no_grad():
        assert torch.equal(exported(images), model(images))


def test_blocks_may_have_custom_module_names(tmp_path, small_images):
    """The names then lack `layers.` and `shortcut.`, even if layers without weights have the same name in both."""
    conv = {"name": "conv2d", "out_channels": 2, "kernel_size": 1}
    block = {"name": "residual", "modules": ["shortcut", "norm", "conv"], "activation": "relu",
             "layers": [conv | {"as": "conv"}, "relu", {"name": "batch_norm", "as": "norm"}],
             "shortcut": [conv | {"as": "shortcut"}, {"name": "dropout", "p": 0.5}]}
    folder = train_layers(tmp_path, [block, *LINEAR], small_images[0])
    weights = torch.load(folder.path / "model.pt", weights_only=True)
    model = python_model(folder.checkpoints()[-1], tmp_path / "net.py", folder.path / "model.pt")
    assert list(model.state_dict()) == list(weights)
    assert list(weights)[:3] == ["0.shortcut.weight", "0.shortcut.bias", "0.norm.weight"]
    session = exported_session(folder.checkpoints()[-1], tmp_path / "net.onnx")
    images = numpy.random.default_rng(3).standard_normal((20, *SHAPE), numpy.float32)
    assert abs(onnx_logits(session, images) - torch_logits(model, images)).max() <= TOLERANCE
    assert numpy.array_equal(torch_logits(torch.jit.script(model), images), torch_logits(model, images))


def test_names_that_python_modules_cannot_have_are_refused(tmp_path):
    exported = ["_layers", "_shortcut", "_activation"]
    names = sorted({*dir(torch.nn.Sequential()), *vars(torch.nn.Sequential()), *keyword.kwlist, *exported})
    layers = [{"name": "relu", "as": name} for name in names] + [{"name": "relu", "as": "_conv_stem"}]
    found = run("--config", write_config(tmp_path, {"model": {"layers": layers}}), "--dry-run", expect=2).stderr
    assert [name for i, name in enumerate(names) if f"/model/layers/{i}/as: expected a name" not in found] == []
    assert f"/model/layers/{len(names)}/" not in found


# Refused exports write no file


def refused(folder, source, form, output, code, *flags):
    """Returns standard error of a refused export; asserts that it wrote no file."""
    before = sorted(folder.rglob("*"))
    content = source.read_bytes()
    result = export(source, form, output, *flags, expect=code)
    assert sorted(folder.rglob("*")) == before and source.read_bytes() == content
    return result.stderr


def test_a_layer_that_onnx_cannot_express_is_reported(tmp_path, small_images):
    layers = ["relu", {"name": "sequential", "layers": [{"name": "adaptive_avg_pool2d", "output_size": 5}]}, *LINEAR]
    weights_of(lambda: torch_network(layers, SHAPE), tmp_path)
    config = config_of(tmp_path, layers, small_images[0])
    said = refused(tmp_path, tmp_path / "model.pt", "onnx", tmp_path / "net.onnx", 2, "--config", config)
    assert "/model/layers/1/layers/0: " in said and "adaptive_avg_pool2d from [N,1,14,13] to [N,1,5,5]" in said, said
    export(tmp_path / "model.pt", "python", tmp_path / "net.py", "--config", config)


def test_the_source_is_never_overwritten(tmp_path, small_images):
    weights = linear_weights(tmp_path).rename(tmp_path / "model")
    config = config_of(tmp_path, LINEAR, small_images[0])
    (tmp_path / "link").symlink_to(weights)
    (tmp_path / "hard").hardlink_to(weights)
    for form, output in (("pt", weights), ("safetensors", tmp_path / "link"), ("onnx", tmp_path / "hard"),
                         ("python", tmp_path / ".." / tmp_path.name / "model")):
        said = refused(tmp_path, weights, form, output, 2, "--config", config)
        assert "never overwritten" in said, said


@pytest.mark.parametrize("form, key, name", [("onnx", "torchscript", "net.ts"), ("python", "plugin", "libnet.so")])
def test_networks_without_layers_are_refused(tmp_path, small_images, form, key, name):
    (tmp_path / name).write_bytes(b"")
    config = write_config(tmp_path, {"data": small_images[0], "model": {key: str(tmp_path / name)}})
    said = refused(tmp_path, linear_weights(tmp_path), form, tmp_path / "net", 2, "--config", config)
    assert f"model.{key}" in said and name in said, said
