"""Reads and writes PNG files, data URIs and previews with Pillow."""

import base64
import io
from pathlib import Path

import numpy
from PIL import Image
from support import printed_json

CLIPART = Path("/usr/share/openclipart/png")  # from the package openclipart-png
CLIPART_CLASSES = ["animals", "food", "people", "plants", "tools", "transportation"]


def read_png(content):
    """Returns the image as uint8 [height, width, channels]."""
    pixels = numpy.asarray(Image.open(io.BytesIO(content), formats=["PNG"]))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def write_png(path, pixels):
    """Writes a PNG file of [height, width] grayscale or [height, width, 3 or 4] RGB or RGBA pixels."""
    Image.fromarray(pixels).save(path, "PNG")
    return path


def write_class_folders(folder, images_by_class):
    """Writes one folder of PNG files per class; the files are named by index. Returns all paths."""
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
    """Runs preview; returns for each process the records of its images, with "pixels" [H,W,C]."""
    shown = printed_json("preview", "--config", config, "--output", page, "--scale", 1, "--json", *arguments)
    pixels = read_png(page.read_bytes())
    processes = [process["images"] for process in shown["processes"]]
    for image in sum(processes, []):
        top, left = image["top"], image["left"]
        image["pixels"] = pixels[top:top + shown["height"], left:left + shown["width"]]
    return processes
