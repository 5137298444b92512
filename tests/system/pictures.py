"""PNG files, data URIs and previews, read and written by Pillow."""

import base64
import io
from pathlib import Path

import numpy
from PIL import Image
from support import printed_json

CLIPART = Path("/usr/share/openclipart/png")  # of the package openclipart-png
CLIPART_CLASSES = ["animals", "food", "people", "plants", "tools", "transportation"]


def read_png(content):
    """[height, width, channels] u8."""
    pixels = numpy.asarray(Image.open(io.BytesIO(content), formats=["PNG"]))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def write_png(path, pixels):
    """[height, width] gray, or [height, width, 3 or 4] colour, the last with how opaque it is."""
    Image.fromarray(pixels).save(path, "PNG")
    return path


def write_class_folders(folder, images_by_class):
    """A folder of PNG files for each class, whose names are their numbers; the paths of all."""
    paths = []
    for name, images in images_by_class.items():
        (folder / name).mkdir(parents=True)
        paths += [write_png(folder / name / f"{number}.png", image) for number, image in enumerate(images)]
    return paths


def read_data_uri(uri):
    prefix = "data:image/png;base64,"
    assert uri.startswith(prefix)
    return read_png(base64.b64decode(uri[len(prefix):], validate=True))


def read_preview(config, page, *arguments):
    """By process: the facts of each image, with its "pixels" [H,W,C]."""
    shown = printed_json("preview", "--config", config, "--output", page, "--scale", 1, "--json", *arguments)
    pixels = read_png(page.read_bytes())
    processes = [process["images"] for process in shown["processes"]]
    for image in sum(processes, []):
        top, left = image["top"], image["left"]
        image["pixels"] = pixels[top:top + shown["height"], left:left + shown["width"]]
    return processes
