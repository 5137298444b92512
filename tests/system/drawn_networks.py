"""Networks drawn at random, as lists of layers of a config and as the modules of PyTorch that they mean."""

import random
from collections import OrderedDict

import torch
from torch import nn

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid,
               "leaky_relu": nn.LeakyReLU}
# How PyTorch makes a layer of its arguments and of the shape that it takes, without the batch.
MODULES = {
    "conv2d": lambda shape, out_channels, **others: nn.Conv2d(shape[0], out_channels, **others),
    "linear": lambda shape, out_features, **others: nn.Linear(shape[0], out_features, **others),
    "batch_norm": lambda shape, **others: (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(shape[0], **others),
    "group_norm": lambda shape, num_groups, **others: nn.GroupNorm(num_groups, shape[0], **others),
    "max_pool2d": lambda _, **others: nn.MaxPool2d(**others),
    "avg_pool2d": lambda _, **others: nn.AvgPool2d(**others),
    "adaptive_avg_pool2d": lambda _, output_size=1: nn.AdaptiveAvgPool2d(output_size),
    "flatten": lambda _: nn.Flatten(),
    "dropout": lambda _, p=0.5: nn.Dropout(p),
    "sequential": lambda shape, layers: torch_network(layers, shape),
    "repeat": lambda shape, times, layers: torch_network(times * layers, shape),
    "residual": lambda shape, layers, shortcut=None, activation=None: Residual(
        torch_network(layers, shape), shortcut and torch_network(shortcut, shape),
        activation and ACTIVATIONS[activation]()),
} | {name: lambda _, make=make, **others: make(**others) for name, make in ACTIVATIONS.items()}


class Residual(nn.Module):
    def __init__(self, layers, shortcut, activation):
        super().__init__()
        self.layers, self.shortcut, self.activation = layers, shortcut, activation

    def forward(self, x):
        y = self.layers(x) + (self.shortcut(x) if self.shortcut else x)
        return self.activation(y) if self.activation else y


def torch_network(layers, shape, classes=10):
    """The nn.Sequential that a list of layers means for images, or what else it gets, of this shape [C,H,W]. Its
    weights are drawn in the order of the list."""
    modules = OrderedDict()
    for index, entry in enumerate(layers):
        arguments = {"name": entry} if isinstance(entry, str) else dict(entry)
        name, own_name = arguments.pop("name"), arguments.pop("as", str(index))
        modules[own_name] = MODULES[name](shape, **{key: plain(value, classes) for key, value in arguments.items()})
        shape = shape_behind(modules[own_name], shape)
    return nn.Sequential(modules)


def plain(value, classes):
    """An argument as PyTorch takes it: [height, width] is a tuple there."""
    if value == "classes":
        return classes
    return tuple(value) if isinstance(value, list) and isinstance(value[0], int) else value


def shape_behind(module, shape):
    training = module.training
    with torch.no_grad():
        shape = tuple(module.eval()(torch.zeros(1, *shape)).shape[1:])
    module.train(training)
    return shape


# Kinds that a drawing puts between images and the linear layers at the end, and those that keep the shape.
KEEPING_SHAPE = ("batch_norm", "group_norm", "dropout", *ACTIVATIONS)
BARE_ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid")  # of residual
LEAVES = ("conv2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", *KEEPING_SHAPE)
KINDS = (*LEAVES, "sequential", "repeat", "residual")


class Drawing:
    """Draws layers with their arguments. What does not fit the shape that it would get is drawn again."""

    def __init__(self, seed, kinds):
        self.draw = random.Random(seed)
        self.kinds = kinds

    def maybe(self, probability=0.5):
        return self.draw.random() < probability

    def sizes(self, least, most):
        """One number, or [height, width]."""
        one = self.draw.randint(least, most)
        return one if self.maybe() else [one, self.draw.randint(least, most)]

    def divisor(self, number, most=16):
        return self.draw.choice([size for size in range(1, min(number, most) + 1) if number % size == 0])

    def among(self, kinds):
        return self.draw.choice([kind for kind in kinds if kind in self.kinds])

    def conv2d(self, shape):
        groups = self.divisor(shape[0], 3)
        layer = {"out_channels": groups * self.draw.randint(1, 6 // groups), "kernel_size": self.sizes(1, 4),
                 "dilation": self.sizes(1, 2), "groups": groups, "bias": self.maybe(0.7)}
        if self.maybe(0.3):
            return layer | {"padding": "same"}
        return layer | {"padding": self.sizes(0, 2), "stride": self.sizes(1, 2)}

    def window(self):
        kernel = self.sizes(1, 4)
        smallest = kernel if isinstance(kernel, int) else min(kernel)
        layer = {"kernel_size": kernel, "padding": self.draw.randint(0, smallest // 2), "ceil_mode": self.maybe()}
        return layer | ({"stride": self.sizes(1, 3)} if self.maybe() else {})

    def max_pool2d(self, shape):
        # In a side of one pixel a dilated window could lie in the padding alone.
        return self.window() | {"dilation": self.sizes(1, 2 if min(shape[1:]) > 1 else 1)}

    def avg_pool2d(self, _):
        return self.window() | {"count_include_pad": self.maybe()}

    def adaptive_avg_pool2d(self, shape):
        """ONNX has only those whose windows are of one size."""
        return {"output_size": [self.divisor(side) for side in shape[1:]]}

    def batch_norm(self, _):
        return {"eps": self.draw.choice([1e-5, 1e-3]), "momentum": self.draw.choice([0.1, 0.5])}

    def group_norm(self, shape):
        most = shape[0] if len(shape) == 3 else shape[0] // 2
        return {"num_groups": self.divisor(shape[0], most), "eps": self.draw.choice([1e-5, 1e-3])}

    def gelu(self, _):
        return {"approximate": self.draw.choice(["none", "tanh"])}

    def leaky_relu(self, _):
        return {"negative_slope": self.draw.choice([0.01, 0.2])}

    def dropout(self, _):
        return {"p": self.draw.choice([0.1, 0.5])}

    def sequential(self, shape):
        return {"layers": self.layers(shape, [self.among(LEAVES) for _ in range(self.draw.randint(1, 3))])}

    def repeat(self, shape):
        conv = {"name": "conv2d", "out_channels": shape[0], "kernel_size": self.sizes(1, 4), "padding": "same"}
        behind = self.layer(self.among(KEEPING_SHAPE), shape)
        if isinstance(behind, dict):
            behind.pop("as", None)  # a name cannot be there twice
        return {"times": self.draw.randint(1, 3), "layers": [conv, behind]}

    def residual(self, shape):
        out_channels, stride = self.draw.choice([(shape[0], 1), (self.draw.randint(1, 6), 2), (5, 1)])
        behind = (out_channels, *((side + stride - 1) // stride for side in shape[1:]))
        block = {"layers": [{"name": "conv2d", "out_channels": out_channels, "kernel_size": 3, "padding": 1,
                             "stride": stride}, *(self.layer(self.among(KEEPING_SHAPE), behind) for _ in range(2))]}
        if behind != shape:
            block["shortcut"] = [{"name": "conv2d", "out_channels": out_channels, "kernel_size": 1, "stride": stride}]
        return block | ({"activation": self.among(BARE_ACTIVATIONS)} if self.maybe() else {})

    def layer(self, kind, shape):
        arguments = getattr(self, kind, lambda _: {})(shape)
        if self.maybe(0.2):
            arguments["as"] = f"{kind}_{self.draw.randint(0, 10**6)}"
        return {"name": kind, **arguments} if arguments else kind

    def layers(self, shape, kinds):
        drawn = []
        for kind in kinds:
            behind = None
            while behind is None:
                layer = self.layer(kind, shape)
                try:
                    behind = shape_behind(torch_network([layer], shape), shape)
                except (RuntimeError, ValueError):  # a window does not fit, or a group has one number alone
                    kind = self.among(LEAVES)
            shape = behind
            drawn.append(layer)
        return drawn

    def network(self, shape, first):
        images = self.layers(shape, [first, *(self.among(KINDS) for _ in range(self.draw.randint(2, 5)))])
        behind = [self.layer(self.among(KEEPING_SHAPE), (9,)) for _ in range(self.draw.randint(0, 2))]
        return [*images, "flatten", {"name": "linear", "out_features": 9, "bias": self.maybe()}, *behind,
                {"name": "linear", "out_features": "classes"}]


def drawn_network(seed, images=(1, 14, 13), kinds=KINDS):
    """(layers, build): a list of layers as a config has it, and a function that builds the same torch.nn.Sequential for
    ten classes, with weights by PyTorch's current seed. It is the same for a seed; seeds in a row begin with all
    `kinds`, one after the other."""
    with torch.random.fork_rng():
        layers = Drawing(seed, kinds).network(images, kinds[seed % len(kinds)])
    return layers, lambda: torch_network(layers, images)
