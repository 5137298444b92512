"""The network of a run of mnist-train, in PyTorch.

`mnist-train export --checkpoint RUN --format pt --output weights.pt` writes the weights of the run's
best checkpoint; its model.pt has the final ones. `preprocess` needs Pillow 10.1 or newer:

    model = make_model()
    model.load_state_dict(torch.load("weights.pt", weights_only=True), strict=True)
    model.eval()
    with torch.no_grad():
        print(CLASSES[model(preprocess("picture.jpg")).argmax()])

INPUT
"""

import torch
from PIL import Image, ImageOps
from torch import nn

# `mnist-train export --format python` writes the docstring above, a run's constants and network,
# and the classes and functions below that are needed. INPUT and SHAPE are replaced.

SIZE = (28, 28)  # height, width
MODE = "L"
BACKGROUND = (255, 255, 255)


class Residual(nn.Module):
    """The sum of `layers` and `shortcut`, applied to the same input."""

    def __init__(self, layers, shortcut=None, activation=None):
        super().__init__()
        self.layers = layers
        self.shortcut = shortcut
        self.activation = activation

    def forward(self, x):
        y = self.layers(x) + (x if self.shortcut is None else self.shortcut(x))
        return y if self.activation is None else self.activation(y)


class FlatResidual(nn.Module):
    """A residual block whose children are the modules of its layers.

    `layers` and `shortcut` are names of modules, in the order of computation.
    """

    def __init__(self, modules, layers, shortcut=(), activation=None):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self._layers = tuple(layers)  # torch.jit.script has no getattr, but unrolls these loops
        self._shortcut = tuple(shortcut)
        self._activation = activation

    def forward(self, x):
        y = x
        for step in self._layers:
            for name, module in self.named_children():
                if name == step:
                    y = module(y)
        for step in self._shortcut:
            for name, module in self.named_children():
                if name == step:
                    x = module(x)
        return y + x if self._activation is None else self._activation(y + x)


class Gate(nn.Module):
    """Multiplies the input by the output of `layers`."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return x * self.layers(x)


# Pictures are [height, width, channels], float32, from 0 to 255 until they are normalised.


def resize(pixels, size):
    """Resize a picture bilinearly with antialiasing, using mnist-train's arithmetic."""
    for new in reversed(size):
        pixels = pixels.transpose(0, 1).contiguous()
        old = len(pixels)
        radius = max(old / new, 1)
        centres = (torch.arange(new, dtype=torch.float64)[:, None] + 0.5) * (old / new)
        first = (centres - radius + 0.5).floor().clamp(min=0)
        end = (centres + radius + 0.5).floor().clamp(max=old)
        taps = first + torch.arange(int((end - first).max()))
        weights = (1 - ((taps + 0.5 - centres) / radius).abs()).clamp(min=0) * (taps < end)
        weights = (weights.float() / weights.sum(1, keepdim=True)).float()
        taps = taps.long().clamp(max=old - 1)
        pixels = sum(w[:, None, None] * pixels[rows] for w, rows in zip(weights.T, taps.T))
    return (pixels + 0.5).floor()


def place(pixels, top, left, size, colour):
    """Put a picture on a canvas of one colour, at a position that may be negative."""
    bottom, right = size[0] - top - pixels.shape[0], size[1] - left - pixels.shape[1]
    edges = (0, 0, left, right, top, bottom)
    return nn.functional.pad(pixels - colour, edges) + colour


def to_pixels(picture):
    values = bytearray(picture.convert(MODE).tobytes())
    pixels = torch.frombuffer(values, dtype=torch.uint8).float()
    return pixels.view(picture.height, picture.width, -1)


def fit_stretch(pixels):
    """Stretch a picture to SIZE."""
    return resize(pixels, SIZE)


def fit_crop(pixels):
    """Cover SIZE and keep the centre, like torchvision's Resize and CenterCrop."""
    (height, width), (rows, columns) = SIZE, pixels.shape[:2]
    if columns * height >= rows * width:
        width = height * columns // rows
    else:
        height = width * rows // columns
    top, left = -round((height - SIZE[0]) / 2), -round((width - SIZE[1]) / 2)
    return place(resize(pixels, (height, width)), top, left, SIZE, 0)


def fit_pad(pixels):
    """Show the whole picture in SIZE, like Pillow's ImageOps.pad."""
    (height, width), (rows, columns) = SIZE, pixels.shape[:2]
    if columns / rows > width / height:
        height = max(1, round(rows / columns * width))
    elif columns / rows < width / height:
        width = max(1, round(columns / rows * height))
    top, left = round((SIZE[0] - height) * 0.5), round((SIZE[1] - width) * 0.5)
    bars = to_pixels(Image.new("RGB", (1, 1), BACKGROUND))
    return place(resize(pixels, (height, width)), top, left, SIZE, bars)


def preprocess(path):
    """Return a picture file as mnist-train sees it: SHAPE, normalised."""
    with Image.open(path) as file:
        picture = ImageOps.exif_transpose(file)
    if picture.mode.startswith("I"):  # 16 bits: keep the high byte
        values = picture.tobytes()
        step = len(values) // (picture.width * picture.height)
        transparent = picture.info.get("transparency")
        picture = Image.frombytes("L", picture.size, values[1::step])
        if transparent is not None:
            values = [values[i : i + step] for i in range(0, len(values), step)]
            key = transparent.to_bytes(step, "little")
            alpha = bytes(0 if value == key else 255 for value in values)
            picture.putalpha(Image.frombytes("L", picture.size, alpha))
    if picture.has_transparency_data:
        ground = Image.new("RGBA", picture.size, (*BACKGROUND, 255))
        picture = Image.alpha_composite(ground, picture.convert("RGBA"))
    pixels = fit_stretch(to_pixels(picture))
    return pixels.permute(2, 0, 1)[None].contiguous()
