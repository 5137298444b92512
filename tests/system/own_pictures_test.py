"""A folder of pictures of all kinds, from the files to a trained network: the pixels are Pillow's and torchvision's, the
held-out files follow the rule, the losses are PyTorch's, and all commands agree."""

import hashlib
import json
import math

import numpy
import pytest
from support import import_torch, run, train, write_config

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
torch = import_torch()
transforms = pytest.importorskip("torchvision.transforms.v2.functional")

CLASSES = {"birds": 14, "buildings": 9, "flags": 20, "fruit": 7, "tools": 12, "vehicles": 5}
SIZE = 24
STEPS = 20
SEED = 3


def paint(draw, colour, height, width, channels):
    """A blob of the colour on a gradient."""
    y, x = numpy.mgrid[0:height, 0:width]
    centre = draw.uniform(0.3, 0.7, 2) * (height, width)
    blob = numpy.exp(-((y - centre[0]) ** 2 + (x - centre[1]) ** 2) / (0.08 * height * width))
    image = numpy.stack([(y / height * 90 + blob * colour[i % 3]).clip(0, 255) for i in range(channels)], axis=-1)
    if channels in (2, 4):
        image[..., -1] = (blob * 300).clip(0, 255)
    return image.astype(numpy.uint8)


def save(path, draw, colour, kind):
    height, width = (int(side) for side in draw.integers(9, 70, 2))
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
    mode, suffix = {0: ("RGB", "png"), 1: ("RGBA", "png"), 2: ("LA", "png"), 3: ("L", "png"), 4: ("P", "png"), 5: ("RGB", "jpg"),
                    6: ("CMYK", "jpg"), 7: ("RGBA", "webp"), 8: ("RGB", "bmp"), 9: ("RGB", "ppm"), 10: ("L", "pgm")}[kind]
    pixels = paint(draw, colour, height, width, channels.get(mode, 4))
    image = Image.fromarray(pixels.squeeze(), "RGBA" if mode == "P" else mode)
    options = {}
    if mode == "P":
        image = image.quantize(32)
        options["transparency"] = 3
    if suffix == "jpg":
        options["quality"] = 95
        if draw.integers(2):
            exif = Image.Exif()
            exif[0x0112] = int(draw.integers(1, 9))
            options["exif"] = exif
    if suffix == "webp":
        options["lossless"] = True
    image.save(path.with_suffix("." + suffix), **options)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "photos"
    draw = numpy.random.default_rng(7)
    for number, (name, count) in enumerate(CLASSES.items()):
        (folder / name / "more").mkdir(parents=True)
        colour = draw.integers(20, 250, 3)
        for i in range(count):
            save(folder / name / ("more" if i % 3 == 0 else "") / f"{i:02}", draw, colour, (i + number) % 11)
    (folder / "__MACOSX").mkdir()
    (folder / "__MACOSX" / "birds").write_text("")
    (folder / "fruit" / "notes.txt").write_text("none")
    (folder / "empty").mkdir()
    return folder


def opened(path, background="white"):
    """The picture as section 9 of the contract and Pillow see it, RGB."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    return image.convert("RGB")


def fitted(path, fit):
    image = opened(path)
    if fit == "pad":
        return ImageOps.pad(image, (SIZE, SIZE), Image.Resampling.BILINEAR, color="white")
    if fit == "crop":
        return transforms.center_crop(transforms.resize(image, [SIZE], antialias=True), [SIZE, SIZE])
    return image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)


def held_out(files, fraction, seed=0):
    """Those of a class, by the rule of the contract."""
    ordered = sorted(files, key=lambda path: hashlib.sha256(f"{seed}:{path}".encode()).hexdigest())
    if len(files) < 2:
        return []
    return ordered[:min(len(files) - 1, max(1, math.floor(len(files) * fraction + 0.5)))]


def split_of(photos):
    """By class: the files to train on and to test on."""
    split = {}
    for name in CLASSES:
        files = [str(path.relative_to(photos)) for path in (photos / name).rglob("*") if path.suffix not in ("", ".txt")]
        assert len(files) == CLASSES[name]
        test = held_out(files, 0.2)
        split[name] = sorted(set(files) - set(test)), sorted(test)
    return split


def network():
    """Smooth, unlike one with pooling, whose losses part after a few steps for a difference of one level in a pixel."""
    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 32), torch.nn.Tanh(),
                               torch.nn.Linear(32, len(CLASSES)))


LAYERS = ["flatten", {"name": "linear", "out_features": 32}, "tanh", {"name": "linear", "out_features": "classes"}]


def config_of(photos, samples, weights=None, **changes):
    data = {"dataset": None, "limit_train": None, "limit_test": None, "format": "image-folder", "train": str(photos),
            "test": 0.2, "size": SIZE, "channels": 3, **changes.pop("data", {})}
    return {"epochs": STEPS, "batch_size": samples, "seed": SEED, "learning_rate": 0.01, "sgd_momentum": 0.9,
            "model": {"layers": LAYERS} | ({"weights": str(weights)} if weights else {}), "data": data, **changes}


def pytorch_losses(photos, fit, weights=None):
    split = split_of(photos)
    pairs = [(path, label) for label, name in enumerate(CLASSES) for path in split[name][0]]
    images = torch.stack([torch.from_numpy(numpy.asarray(fitted(photos / path, fit)).copy()).permute(2, 0, 1) / 255
                          for path, _ in pairs])
    labels = torch.tensor([label for _, label in pairs])
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels, weight=weights)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.bincount(labels), model


@pytest.mark.parametrize("fit, weighted, processes", [("crop", True, 2), ("pad", False, 1), ("stretch", True, 3)])
def test_losses_follow_pytorch_with_torchvisions_transforms(tmp_path, photos, fit, weighted, processes):
    torch.save(network().state_dict(), tmp_path / "initial.pt")
    counts = torch.tensor([len(train_files) for train_files, _ in split_of(photos).values()])
    weights = counts.sum() / (len(CLASSES) * counts) if weighted else None
    expected, counted, _ = pytorch_losses(photos, fit, weights)
    assert counted.tolist() == counts.tolist() and expected[-1] < 0.9 * expected[0]
    changes = {"class_weights": "balanced"} if weighted else {}
    folder = train(tmp_path, config_of(photos, int(counts.sum()), tmp_path / "initial.pt", data={"fit": fit}, **changes),
                   processes=processes)
    assert [step["loss"] for step in folder.steps()] == pytest.approx(expected, rel=1e-4)


def predict(folder, *arguments):
    said = run("predict", "--checkpoint", folder.path / "model.pt", "--json", *arguments, expect=0)
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_held_out_files_follow_the_rule_and_all_commands_agree(tmp_path, photos):
    config = config_of(photos, 16, data={"fit": "pad", "validation": 0.1}) | {"epochs": 3}
    folder = train(tmp_path, config, processes=2)
    facts = folder.read_json("dataset.json")
    split = split_of(photos)
    assert sorted(facts["test"]) == sorted(path for _, test in split.values() for path in test)
    validation = [path for train_files, _ in split.values() for path in held_out(train_files, 0.1)]
    assert sorted(facts["validation"]) == sorted(validation)
    for entry, (name, count) in zip(facts["classes"], CLASSES.items(), strict=True):
        assert entry["name"] == name and entry["train"] + entry["validation"] + entry["test"] == count
        assert entry["test"] == len(split[name][1])
    assert "txt" in json.dumps(facts["left_out"]) and "__MACOSX" in json.dumps(facts["left_out"])
    path = write_config(tmp_path, config, "evaluated.json")
    for decode in ("once", "stream"):
        evaluated = json.loads(run("evaluate", "--checkpoint", folder.path / "model.pt", "--config", path, "--set",
                                   f"data.decode={decode}", "--nproc-per-node", 2, expect=0).stdout)
        assert evaluated["samples"] == len(facts["test"])
    rows = [json.loads(line) for line in (folder.path / "predictions.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows] == facts["test"]
    by_test = predict(folder, "--test")
    by_name = predict(folder, *(photos / each for each in facts["test"]))
    for row, one, other in zip(rows, by_test, by_name, strict=True):
        assert one["file"].endswith(row["file"]) and other["file"].endswith(row["file"])
        assert one["guess"] == other["guess"] == row["guess"] and one["class"] == row["guess_name"]
        scores = [row[f"score_{label}"] for label in range(len(CLASSES))]
        assert one["scores"] == pytest.approx(scores, abs=1e-4) and other["scores"] == pytest.approx(scores, abs=1e-4)
    correct = sum(row["guess_name"] == row["truth_name"] == row["file"].split("/")[0] for row in rows)
    assert evaluated["test_accuracy"] == pytest.approx(correct / len(rows))
