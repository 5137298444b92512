"""Tests networks that a config defines layer by layer."""

import pytest
from support import import_torch, mnist_bytes, own_data, printed_json, run, swept, train, write_config, write_idx_folder

torch = import_torch()

from torch_models import training  # noqa: E402  (needs torch)
from torch_networks import NETWORKS, torch_network  # noqa: E402

SHAPE = (1, 14, 13)
SAMPLES = 60
STEPS = 10
FULL_BATCH = {"epochs": STEPS, "batch_size": SAMPLES, "learning_rate": 0.002, "sgd_momentum": 0.9,
              "checkpoint": {"every_epochs": 0, "keep_best": False}, "report": {"html": False, "tensorboard": False}}
WITH_DROPOUT = [{"name": "conv2d", "out_channels": 4, "kernel_size": 5}, "relu", {"name": "max_pool2d", "kernel_size": 2},
                {"name": "dropout", "p": 0.3}, "flatten", {"name": "linear", "out_features": 20}, "relu", "dropout",
                {"name": "linear", "out_features": "classes"}]


@pytest.fixture(scope="module")
def cropped(tmp_path_factory):
    """Returns (data section, images, labels): cropped MNIST digits, as files and as tensors."""
    images, labels = mnist_bytes("train", SAMPLES)
    images = images[:, 7:21, 7:20].copy()
    folder = write_idx_folder(tmp_path_factory.mktemp("data") / "cropped", images, labels)
    return own_data("idx", folder), torch.from_numpy(images[:, None]) / 255.0, torch.from_numpy(labels.astype("int64"))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_like_the_same_modules_in_pytorch(tmp_path, cropped, name):
    data, images, labels = cropped
    config = FULL_BATCH | {"seed": 5, "data": data, "model": {"layers": NETWORKS[name]}}
    torch.manual_seed(5)
    model = torch_network(NETWORKS[name], SHAPE)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    losses = list(training(model, optimizer, STEPS * [(images, labels)]))
    folder = train(tmp_path, config, processes=1)
    assert folder.losses() == pytest.approx(losses, rel=1e-5)
    # These include biases before a batch norm, which do not affect the losses and keep their initial values.
    weights = folder.weights()
    assert list(weights) == list(model.state_dict())
    for name, tensor in model.named_parameters():
        assert weights[name] == pytest.approx(tensor.detach().numpy(), abs=1e-4), name


@pytest.mark.parametrize("name", swept(["net", "mlp", "lenet", "resnet18"], ["net", "resnet18"]))
def test_a_built_in_network_equals_the_list_that_describe_prints(tmp_path, name):
    config = {"max_steps": 1, "data": {"limit_test": 10}, "batch_size": 4, "model": {"name": name}}
    named = train(tmp_path, config, output="named")
    described = printed_json("describe", "--config", write_config(tmp_path, config), "--json")
    listed = train(tmp_path, config | {"model": {"layers": described["layers"]}}, output="listed")
    assert listed.digest() == named.digest()
    summary = listed.summary()
    trained = {key: tensor for key, tensor in listed.weights().items() if "running" not in key and "num_batches" not in key}
    assert described["parameters"] == summary["parameters"] == sum(tensor.size for tensor in trained.values())
    assert described["multiply_adds"] == summary["multiply_adds"] > 0


def test_describe_prints_a_readable_table(tmp_path):
    shown = run("describe", "--config", write_config(tmp_path, {"model": {"layers": WITH_DROPOUT}}), expect=0)
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[0] == ["name", "layer", "output", "parameters", "multiply-adds", "tensors"]
    assert rows[2] == ["0", "conv2d", "[N,4,24,24]", "104", "57,600", *"weight, bias: rate 0.01, decay 0".split()]
    assert rows[-1] == ["total", "11,854", "69,320"]


def test_every_initialisation_works(tmp_path):
    layers = ["flatten", {"name": "linear", "out_features": 400}, {"name": "linear", "out_features": 300, "init": "kaiming_normal"},
              {"name": "linear", "out_features": "classes", "init": {"name": "normal", "std": 0.5}}]
    changes = {"max_steps": 1, "learning_rate": 1e-40, "sgd_momentum": 0, "model": {"layers": layers, "init": "xavier_uniform"}}
    weights = train(tmp_path, changes).weights()
    bound = (6 / (784 + 400)) ** 0.5
    assert 0.98 * bound < abs(weights["1.weight"]).max() <= bound and abs(weights["1.bias"]).max() < 1e-35
    assert weights["2.weight"].std() == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    assert weights["3.weight"].std() == pytest.approx(0.5, rel=0.05)


BAD = {  # layers: position and message; tests/network has more
    '["relu", {"name": "linear", "out_features": 10}]': "1:23: /model/layers/1: expects [N,F], but gets [N,1,28,28]",
    '["flaten"]': '"residual", "gate" or "repeat" or an object with a name, found the string "flaten"; did you mean "flatten"?',
    "[" + '{"name":"sequential","layers":[' * 40 + "]}" * 40 + "]": "nest",
}


@pytest.mark.parametrize("layers", BAD)
def test_invalid_layers_are_refused_before_a_process_starts(tmp_path, layers):
    refused = run("--config", write_config(tmp_path), "--set", f"model.layers={layers}", "--output", tmp_path / "run", expect=2)
    assert BAD[layers] in refused.stderr, refused.stderr
    assert len(refused.stderr) < 2000 and not (tmp_path / "run").exists()
