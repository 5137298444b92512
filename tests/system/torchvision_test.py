"""Compares data.augment with torchvision.transforms.v2.functional, using the program's random numbers."""

import math

import numpy
import pytest
import torch
from pictures import read_preview, write_png
from support import own_data, write_config
from torchvision.transforms.v2 import InterpolationMode, functional

COUNT = 150
SEED = 7
BITS = 2**64 - 1
SIZES = {"gray": (1, 28, 31), "rgb": (3, 40, 33)}
CROPPED = [26, 30]
TRIVIAL = ("identity shear_x shear_y translate_x translate_y rotate brightness saturation contrast sharpness posterize "
           "solarize autocontrast equalize").split()


def mixed_bits(bits):
    """Returns the output of splitmix64 for the state `bits`."""
    bits = (bits + 0x9E3779B97F4A7C15) & BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & BITS
    return bits ^ bits >> 31


def uniform(sample, number, entry=0):
    """Returns the random number that an entry of data.augment draws for a sample in the first epoch."""
    state = 0
    for word in (SEED, 0, sample, entry << 8 | number):
        state = mixed_bits(state ^ mixed_bits(word))
    return (state >> 11) * 2.0**-53


def between(low, high, *key):
    return low + (high - low) * uniform(*key)


def single(value):
    return float(numpy.float32(value))


def draw_box(sample, number, scale, ratio, size, fits):
    """Returns top, left, height and width. The height is greater if the ratio is above 1."""
    for i in range(number, number + 20, 2):
        area = size[0] * size[1] * between(*scale, sample, i)
        shape = math.exp(between(math.log(ratio[0]), math.log(ratio[1]), sample, i + 1))
        height, width = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if fits(height, width):
            return (int(uniform(sample, i + 2) * (size[0] - height + 1)),
                    int(uniform(sample, i + 3) * (size[1] - width + 1)), height, width)
    return None


def resized_crop(image, sample):
    height, width = image.shape[1:]
    box = draw_box(sample, 0, (0.08, 1), (3 / 4, 4 / 3), (height, width), lambda h, w: 0 < h <= height and 0 < w <= width)
    return functional.resized_crop(image, *(box or (0, 0, height, width)), [24, 20], antialias=True)


def jitter(image, sample):
    factors = [("brightness", between(0.6, 1.4, sample, 0)), ("contrast", between(0.1, 2, sample, 1)),
               ("saturation", between(0, 2.5, sample, 2)), ("hue", between(-0.3, 0.3, sample, 3))]
    for left in (4, 3, 2):
        chosen = int(uniform(sample, 2 + left) * left)
        factors[left - 1], factors[chosen] = factors[chosen], factors[left - 1]
    for name, factor in factors:
        image = getattr(functional, f"adjust_{name}")(image, single(factor))
    return image


def trivial(image, sample):
    name = TRIVIAL[int(uniform(sample, 0) * 14)]
    number = int(uniform(sample, 1) * 31)
    sign = -1 if uniform(sample, 2) <= 0.5 else 1

    def part(limit):
        return float(torch.linspace(0, limit, 31)[number]) * sign

    none = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    if name.startswith("shear"):
        angle = math.degrees(math.atan(part(0.99)))
        return functional.affine(image, **none | {"shear": [angle, 0.0] if name == "shear_x" else [0.0, angle]}, center=[0, 0])
    if name.startswith("translate"):
        pixels = int(part(32.0))
        return functional.affine(image, **none | {"translate": [pixels, 0] if name == "translate_x" else [0, pixels]})
    if name == "rotate":
        return functional.rotate(image, part(135.0))
    if name == "posterize":
        return functional.posterize(image, int((8 - torch.arange(31) / 5).round()[number]))
    if name == "solarize":
        return functional.solarize(image, 255 * float(torch.linspace(1, 0, 31)[number]))
    if name in ("autocontrast", "equalize"):
        return getattr(functional, name)(image)
    if name == "identity":
        return image
    return getattr(functional, f"adjust_{name}")(image, 1 + part(0.99))


def colour(image):
    return [10.0, 200.0, 30.0][:len(image)]


def erasing(image, sample):
    height, width = image.shape[1:]
    if uniform(sample, 0) >= 0.8:
        return image
    box = draw_box(sample, 1, (0.02, 0.33), (0.3, 3.3), (height, width), lambda h, w: h < height and w < width)
    return functional.erase(image, *box, torch.tensor(colour(image))[:, None, None]) if box else image


def rotate(image, sample):
    angle = (2 * uniform(sample, 0) - 1) * 70
    return functional.rotate(image, angle, InterpolationMode.BILINEAR, fill=colour(image))


def rotate_black(image, sample):
    angle = (2 * uniform(sample, 0) - 1) * 70
    return functional.rotate(image, angle, InterpolationMode.BILINEAR, fill=0)


def crop(image, sample):
    top, left = (int(uniform(sample, number) * (side + 8 - cropped + 1))
                 for number, (side, cropped) in enumerate(zip(image.shape[1:], CROPPED)))
    return functional.crop(functional.pad(image, [4] * 4, fill=colour(image)), top, left, *CROPPED)


def vertical_flip(image, sample):
    return functional.vertical_flip(image) if uniform(sample, 0) < 0.5 else image


OPERATIONS = {
    resized_crop: {"name": "random_resized_crop", "size": [24, 20]},
    jitter: {"name": "color_jitter", "brightness": 0.4, "contrast": [0.1, 2], "saturation": [0, 2.5], "hue": 0.3},
    trivial: "trivial_augment",
    erasing: {"name": "random_erasing", "probability": 0.8},
    rotate: {"name": "rotate", "degrees": 70},
    rotate_black: {"name": "rotate", "degrees": 70},
    crop: {"name": "random_crop", "size": CROPPED, "padding": 4},
    vertical_flip: "vertical_flip",
}


def make_pictures(channels, height, width):
    """Yields images of waves, images of noise, and images with few intensity levels."""
    random = numpy.random.default_rng(3)
    y, x = numpy.mgrid[0:height, 0:width]
    for i in range(COUNT):
        waves = [127 + 110 * numpy.sin(x / random.uniform(2, 9) + y / random.uniform(2, 9)) for _ in range(channels)]
        noise = random.integers(0, 256, (channels, height, width))
        levels = random.integers(90, 97, (channels, height, width))
        yield numpy.stack([waves, noise, levels][i % 3]).astype(numpy.uint8)


@pytest.fixture(scope="module", params=SIZES)
def pictures(request, tmp_path_factory):
    """Returns a folder of images of one size, and their pixels by sample."""
    folder = tmp_path_factory.mktemp(request.param)
    for half in ("train", "test"):
        for label in "ab":
            (folder / half / label).mkdir(parents=True)
    pixels = list(make_pictures(*SIZES[request.param]))
    for sample, image in enumerate(pixels):
        path = folder / "train" / "ab"[sample >= COUNT // 2] / f"{sample:03}.png"
        write_png(path, image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    for label in "ab":
        path = folder / "train" / label / f"{0 if label == 'a' else COUNT // 2:03}.png"
        (folder / "test" / label / "0.png").write_bytes(path.read_bytes())
    return folder, pixels


def preview(folder, place, augment):
    """Returns the preview records of one batch, with pixels [C,H,W]."""
    data = own_data("image-folder", folder / "train", folder / "test", augment=augment)
    config = write_config(place, {"seed": SEED, "batch_size": COUNT, "data": data})
    (images,) = read_preview(config, place / "grid.png", "--nproc-per-node", 1)
    for image in images:
        image["pixels"] = image["pixels"].transpose(2, 0, 1)
    assert sorted(image["sample"] for image in images) == list(range(COUNT))
    return images


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_pixels_match_torchvision(tmp_path, pictures, operation):
    folder, pixels = pictures
    entry = OPERATIONS[operation]
    if operation in (erasing, rotate, crop):
        entry = entry | {"fill": colour(pixels[0])}
    changed = 0
    for image in preview(folder, tmp_path, [entry]):
        sample = image["sample"]
        expected = operation(torch.from_numpy(pixels[sample]), sample).numpy()
        assert image["pixels"].shape == expected.shape
        difference = numpy.abs(image["pixels"].astype(int) - expected)
        assert difference.max() <= 1, (sample, difference.max())
        changed += expected.shape != pixels[sample].shape or (expected != pixels[sample]).any()
    assert changed > COUNT / 3


def symmetric_beta(alpha, first, second):
    """Returns the program's draw from Beta(alpha, alpha); unit tests check its distribution."""
    cosine = math.cos(2 * math.pi * second)
    square = cosine**2 * math.expm1(-math.log1p(-first) / alpha)
    return 0.5 + math.copysign(0.5, cosine) * (1 / math.sqrt(1 + 1 / square) if square > 0 else 0)


def test_cutmix_weights_labels_by_the_replaced_area(tmp_path, pictures):
    folder, pixels = pictures
    images = preview(folder, tmp_path, [{"name": "cutmix", "alpha": 0.7}])
    for image, partner in zip(images, images[1:] + images[:1]):
        sample = image["sample"]
        expected, other = pixels[sample].copy(), pixels[partner["sample"]]
        height, width = expected.shape[1:]
        part = 0.5 * math.sqrt(1 - symmetric_beta(0.7, uniform(sample, 0), uniform(sample, 1)))
        x, y = int(uniform(sample, 2) * width), int(uniform(sample, 3) * height)
        left, right = max(x - int(part * width), 0), min(x + int(part * width), width)
        top, bottom = max(y - int(part * height), 0), min(y + int(part * height), height)
        expected[:, top:bottom, left:right] = other[:, top:bottom, left:right]
        assert (image["pixels"] == expected).all()
        assert image["other_label"] == partner["label"]
        assert image["weight"] == single(1 - (right - left) * (bottom - top) / (width * height))
