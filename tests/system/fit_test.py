"""For custom image folders, train, evaluate, preview and predict see the same pixels."""

import numpy
import pytest
from PIL import Image, ImageOps
from pictures import read_preview
from support import json_lines, own_data, printed_json, run, train, write_config

KINDS = (("png", {}), ("webp", {"lossless": True}), ("bmp", {}), ("ppm", {}), ("jpg", {"quality": 95}))
BACKGROUND = (250, 200, 20)


def picture(kind, seed):
    """Returns an image of random shape: for class 0 a dark blot on a transparent background, for class 1 a light blot."""
    rng = numpy.random.default_rng(seed)
    height, width = rng.integers(20, 70, 2)
    rgba = numpy.zeros((height, width, 4), numpy.uint8)
    rgba[:, :, :3] = rng.integers(0, 90, 3) if kind == 0 else rng.integers(130, 255, 3)
    y, x = numpy.mgrid[0:height, 0:width]
    distance = ((y - height / 2) / height) ** 2 + ((x - width / 2) / width) ** 2
    rgba[:, :, 3] = numpy.clip((0.2 - distance) * 2000, 0, 255)
    return Image.fromarray(rgba)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for split, count in (("train", 30), ("test", 15)):
        for label in (0, 1):
            (root / split / str(label)).mkdir(parents=True)
            for number in range(count):
                extension, options = KINDS[number % len(KINDS)]
                image = picture(label, 1000 * label + number + len(split))
                if extension in ("ppm", "jpg", "bmp"):
                    image = image.convert("CMYK" if extension == "jpg" and number % 2 else "RGB")
                elif extension == "png" and number % 2:
                    image = image.convert("LA")
                if extension in ("jpg", "webp", "png"):
                    exif = Image.Exif()
                    exif[0x0112] = 1 + number % 8
                    options = options | {"exif": exif}
                image.save(root / split / str(label) / f"{number:02}.{extension}", **options)
    return root


def settings(folder, **others):
    own = own_data("image-folder", folder / "train", folder / "test", size=24, channels=3, background=list(BACKGROUND))
    return {"epochs": 2, "batch_size": 10, "data": own | others}


def prepared(path, fit):
    """Returns the 24 x 24 image that Pillow computes."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, (*BACKGROUND, 255)), image.convert("RGBA"))
    image = image.convert("RGB")
    if fit == "stretch":
        return image.resize((24, 24), Image.Resampling.BILINEAR)
    if fit == "pad":
        return ImageOps.pad(image, (24, 24), Image.Resampling.BILINEAR, color=BACKGROUND)
    long = int(24 * max(image.size) / min(image.size))
    image = image.resize((24, long) if image.height > image.width else (long, 24), Image.Resampling.BILINEAR)
    left, top = (round((side - 24) / 2) for side in image.size)
    return image.crop((left, top, left + 24, top + 24))


@pytest.mark.parametrize("fit", ("stretch", "crop", "pad"))
def test_preview_shows_the_same_pixels_as_pillow(tmp_path, folder, fit):
    config = write_config(tmp_path, settings(folder, fit=fit) | {"batch_size": 60})
    (images,) = read_preview(config, tmp_path / "grid.png", "--nproc-per-node", 1)
    files = sorted((folder / "train").glob("*/*"))
    for shown in images:
        wanted = numpy.asarray(prepared(files[shown["sample"]], fit)).astype(int)
        assert shown["pixels"].shape == (24, 24, 3)
        assert abs(shown["pixels"] - wanted).max() <= (3 if files[shown["sample"]].suffix == ".jpg" else 1), files[shown["sample"]]


@pytest.mark.parametrize("fit, decode", (("crop", "once"), ("pad", "stream"), ("stretch", "stream")))
def test_predict_agrees_with_evaluate(tmp_path, folder, fit, decode):
    done = train(tmp_path, settings(folder, fit=fit, decode=decode))
    tested = done.rows("predictions.jsonl")
    files = sorted((folder / "test").glob("*/*"))
    result = run("predict", "--checkpoint", done.checkpoints()[-1], *files, expect=0)
    predicted = json_lines(result.stdout)
    for ours, theirs in zip(predicted, tested, strict=True):
        assert numpy.allclose(ours["scores"], [theirs["score_0"], theirs["score_1"]], atol=1e-4)
    evaluated = printed_json("evaluate", "--checkpoint", done.checkpoints()[-1], "--json")
    right = sum(row["guess"] == (number >= 15) for number, row in enumerate(predicted))
    assert evaluated["test_accuracy"] == pytest.approx(right / 30)


def test_the_error_for_huge_images_lists_the_keys_to_change(tmp_path, folder):
    config = settings(folder, max_pixels=100)
    refused = run("--config", write_config(tmp_path, config), "--output", tmp_path / "run", expect=3).stderr
    assert "data.max_pixels (100)" in refused and "data.on_bad_sample" in refused


@pytest.mark.parametrize("changes, pointer", (
    ({"size": None, "fit": "crop"}, "data/fit: requires size"),
    ({"fit": "pad", "decode": "dali"}, "data/fit: cannot be used with decode"),
    ({"background": "grey"}, "data/background: "),
    ({"background": [1, 2, 256]}, "data/background/2: "),
    ({"fit": "fill"}, "data/fit: "),
))
def test_invalid_combinations_of_keys_are_refused(tmp_path, folder, changes, pointer):
    refused = run("--config", write_config(tmp_path, settings(folder, **changes)), expect=2).stderr
    assert pointer in refused, refused
