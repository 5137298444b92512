"""PNG files and data URIs, read apart from the program."""

import base64
import struct
import zlib
from pathlib import Path

import numpy

CLIPART = Path("/usr/share/openclipart/png")  # of the package openclipart-png
CLIPART_CLASSES = ["animals", "food", "people", "plants", "tools", "transportation"]
CHANNELS = {0: 1, 2: 3, 6: 4}  # by colour type: gray, RGB, RGB with transparency


def paeth(left, up, corner):
    estimate = int(left) + int(up) - int(corner)
    return min((left, up, corner), key=lambda value: abs(estimate - int(value)))


def unfilter(kind, line, before, step):
    """One line of a PNG; `step` bytes are a pixel."""
    if kind == 0:
        return line
    if kind == 2:
        return line + before
    out = numpy.zeros_like(line)
    for i in range(len(line)):
        left = out[i - step] if i >= step else 0
        corner = before[i - step] if i >= step else 0
        guess = {1: left, 3: (int(left) + int(before[i])) // 2, 4: paeth(left, before[i], corner)}[kind]
        out[i] = (int(line[i]) + int(guess)) % 256
    return out


def read_png(content):
    """[height, width, channels] u8."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colour = struct.unpack(">IIBB", content[16:26])
    assert depth == 8
    data, at = b"", 8
    while at < len(content):
        (size,) = struct.unpack(">I", content[at:at + 4])
        if content[at + 4:at + 8] == b"IDAT":
            data += content[at + 8:at + 8 + size]
        at += 12 + size
    step = CHANNELS[colour]
    lines = numpy.frombuffer(zlib.decompress(data), numpy.uint8).reshape(height, 1 + width * step)
    image = numpy.zeros((height, width * step), numpy.uint8)
    for y in range(height):
        image[y] = unfilter(lines[y, 0], lines[y, 1:], image[y - 1] if y else image[0] * 0, step)
    return image.reshape(height, width, step)


def write_png(path, pixels):
    """[height, width] gray, or [height, width, 3 or 4] colour, the last with how opaque it is."""
    colour = 0 if pixels.ndim == 2 else {3: 2, 4: 6}[pixels.shape[2]]

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
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
