"""Tests networks with the parameter names and shapes of published ones: the originals' weights load strictly and give the same logits."""

import numpy
import pytest
from pictures import write_class_folders
from support import import_torch, own_data, printed_rows, swept, train, write_config

torch = import_torch()
models = pytest.importorskip("torchvision.models")

CLASSES = 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def randomized(model):
    """Sets batch norm statistics and weights that differ per channel, as in trained networks."""
    torch.manual_seed(3)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.3, 0.8)
            torch.nn.init.normal_(module.bias, 0, 0.2)
    return model.eval()


def pictures(folder, size):
    """Writes one class folder per class, each with one image of noise."""
    images = numpy.random.default_rng(size).integers(0, 256, (CLASSES, size, size, 3), numpy.uint8)
    return write_class_folders(folder, {f"class-{label}": [image] for label, image in enumerate(images)}), images


def log_probabilities(model, images):
    x = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        return torch.log_softmax(model(x).double(), dim=1).numpy()


def config_of(name, folder, weights):
    return {"model": {"name": name, "weights": str(weights)}, "data": own_data("image-folder", folder)}


def check(tmp_path, name, model, size):
    paths, images = pictures(tmp_path / "pictures", size)
    weights = tmp_path / "original.pth"
    torch.save(model.state_dict(), weights)
    config = write_config(tmp_path, config_of(name, tmp_path / "pictures", weights))
    ours = numpy.log([row["scores"] for row in printed_rows("predict", "--checkpoint", weights, "--config", config, "--json", *paths)])
    assert ours == pytest.approx(log_probabilities(model, images), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", swept(["resnet18", "resnet34", "resnet50", "mobilenet_v2"], ["resnet50", "mobilenet_v2"]))
def test_initial_weights_are_those_of_torchvision_for_the_seed(tmp_path, name):
    folder = train(tmp_path, {"model": {"name": f"torchvision-{name}"}, "seed": 5, "max_steps": 1, "learning_rate": 0, "sgd_momentum": 0,
                              "batch_size": 8, "data": {"size": 32, "channels": 3, "limit_train": 8, "limit_test": 8}})
    ours = torch.load(folder.path / "model.pt", weights_only=True)
    torch.manual_seed(5)
    for key, parameter in getattr(models, name)(num_classes=CLASSES).named_parameters():
        assert (ours[key] == parameter).all(), key


def test_grayscale_pictures_use_the_gray_statistics_of_a_published_network(tmp_path):
    noise = numpy.random.default_rng(1).integers(0, 256, (2, 8, 32, 32), numpy.uint8)
    write_class_folders(tmp_path / "gray", {"a": noise[0], "b": noise[1]})
    folder = train(tmp_path, {"model": {"name": "torchvision-resnet18"}, "max_steps": 1, "batch_size": 4,
                              "data": own_data("image-folder", tmp_path / "gray") | {"test": 0.25}})
    assert folder.summary()["status"] == "finished"


@pytest.mark.parametrize("size", swept([32, 64, 224], [32]))
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "mobilenet_v2"])
def test_logits_match_torchvision(tmp_path, name, size):
    check(tmp_path, f"torchvision-{name}", randomized(getattr(models, name)(num_classes=CLASSES)), size)


@pytest.mark.parametrize("size", swept([32, 96, 224], [32]))
def test_logits_match_efficientnet_lite(tmp_path, size):
    package = pytest.importorskip("efficientnet_lite_pytorch")
    check(tmp_path, "efficientnet-lite0", randomized(package.EfficientNet.from_name(
        "efficientnet-lite0", num_classes=CLASSES, image_size=size)), size)


def test_trained_weights_load_strictly_into_torchvision(tmp_path):
    pictures(tmp_path / "pictures", 32)
    original = randomized(models.resnet18(num_classes=CLASSES))
    torch.save(original.state_dict(), tmp_path / "original.pth")
    folder = train(tmp_path, config_of("torchvision-resnet18", tmp_path / "pictures", tmp_path / "original.pth") | {
        "max_steps": 2, "batch_size": 5})
    trained = torch.load(folder.path / "model.pt", weights_only=True)
    assert list(trained) == list(original.state_dict())
    original.load_state_dict(trained, strict=True)
    assert folder.read_json("config.json")["data"]["normalize"] == {"mean": list(MEAN), "std": list(STD)}
