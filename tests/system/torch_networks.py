"""Networks as lists of layers from configs, and the equivalent PyTorch modules."""

from collections import OrderedDict

import torch
from torch import nn

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid,
               "leaky_relu": nn.LeakyReLU, "relu6": nn.ReLU6, "hardswish": nn.Hardswish, "hardsigmoid": nn.Hardsigmoid}
# The PyTorch module of each layer, made from its input shape without the batch dimension and its arguments.
MODULES = {
    "conv2d": lambda shape, out_channels, **others: nn.Conv2d(shape[0], out_channels, **others),
    "linear": lambda shape, out_features, **others: nn.Linear(shape[0], out_features, **others),
    "batch_norm": lambda shape, **others: (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(shape[0], **others),
    "group_norm": lambda shape, num_groups, **others: nn.GroupNorm(num_groups, shape[0], **others),
    "max_pool2d": lambda _, **others: nn.MaxPool2d(**others),
    "avg_pool2d": lambda _, **others: nn.AvgPool2d(**others),
    "adaptive_avg_pool2d": lambda _, output_size=1: nn.AdaptiveAvgPool2d(output_size),
    "zero_pad2d": lambda _, padding: nn.ZeroPad2d(padding),
    "gate": lambda shape, layers: Gate(torch_network(layers, shape)),
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


class Gate(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return x * self.layers(x)


def torch_network(layers, shape, classes=10):
    """Returns an nn.Sequential, initialised in list order, for a list of layers and an input shape without batch dimension, as [C,H,W]."""
    modules = OrderedDict()
    for index, entry in enumerate(layers):
        arguments = {"name": entry} if isinstance(entry, str) else dict(entry)
        name, own_name = arguments.pop("name"), arguments.pop("as", str(index))
        modules[own_name] = MODULES[name](shape, **{key: plain(value, classes) for key, value in arguments.items()})
        shape = shape_after(modules[own_name], shape)
    return nn.Sequential(modules)


def plain(value, classes):
    """Returns an argument in PyTorch's form, with [height, width] as a tuple."""
    if value == "classes":
        return classes
    return tuple(value) if isinstance(value, list) and isinstance(value[0], int) else value


def shape_after(module, shape):
    training = module.training
    with torch.no_grad():
        shape = tuple(module.eval()(torch.zeros(1, *shape)).shape[1:])
    module.train(training)
    return shape


def with_statistics(make_model, shape):
    """Returns a model in evaluation mode, with running statistics of a batch of noise, batch norm weights that differ per
    channel, and logits of about 1."""
    torch.manual_seed(1)
    model = make_model()
    for layer in model.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.momentum = 1.0
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, 0, 0.2)
    with torch.no_grad():
        noise = (torch.rand(16, *shape) - 0.45) / 0.225  # like noise after the normalisation of published networks
        model.train()(noise)
        scale = model.eval()(noise).std()
        for parameter in list(model.parameters())[-2:]:
            parameter /= scale
    return model


LAST = {"name": "linear", "out_features": "classes"}
# Together, they cover every layer and argument. They are for images [1,14,13], which are not square and have an odd width.
NETWORKS = {
    "pools": [
        {"name": "conv2d", "out_channels": 4, "kernel_size": [3, 2], "padding": [1, 2], "bias": False},
        {"name": "sequential", "layers": [{"name": "group_norm", "num_groups": 2, "eps": 1e-3}, "relu", {"name": "gelu", "approximate": "none"}]},
        {"name": "max_pool2d", "kernel_size": 3, "ceil_mode": True, "dilation": [1, 2]},
        {"name": "avg_pool2d", "kernel_size": 2, "stride": 1, "padding": 1, "count_include_pad": False},
        {"name": "adaptive_avg_pool2d", "output_size": [3, 2]}, {"name": "gelu", "approximate": "tanh"},
        "flatten", {"name": "linear", "out_features": 9, "bias": False}, {"name": "group_norm", "num_groups": 3}, LAST],
    "blocks": [
        {"name": "conv2d", "out_channels": 4, "kernel_size": 3, "dilation": 2, "padding": "same"},
        {"name": "residual", "layers": [{"name": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1}, "batch_norm", "silu"],
         "activation": "sigmoid"},
        {"name": "residual", "layers": [{"name": "conv2d", "out_channels": 2, "kernel_size": 3, "padding": 1, "stride": 2}, "tanh"],
         "shortcut": [{"name": "conv2d", "out_channels": 2, "kernel_size": 1, "stride": 2}], "activation": "gelu"},
        {"name": "sequential", "as": "end", "layers": [{"name": "leaky_relu", "negative_slope": 0.2}, "flatten"]}, LAST],
    "repeats": [
        {"name": "batch_norm", "as": "norm", "eps": 1e-3, "momentum": 0.5},
        {"name": "repeat", "times": 2, "layers": [{"name": "conv2d", "out_channels": 1, "kernel_size": [2, 1], "padding": "same"},
                                                  {"name": "group_norm", "num_groups": 1}]},
        {"name": "conv2d", "out_channels": 4, "kernel_size": 2, "dilation": [1, 2], "padding": 2, "stride": 2},
        {"name": "conv2d", "out_channels": 6, "kernel_size": 3, "groups": 2}, "leaky_relu",
        "flatten", {"name": "linear", "out_features": 9}, "relu", LAST],
    "gates": [
        {"name": "zero_pad2d", "padding": [0, 1, 2, 0]}, {"name": "conv2d", "out_channels": 6, "kernel_size": 3, "stride": 2}, "hardswish",
        {"name": "gate", "layers": [{"name": "adaptive_avg_pool2d"}, {"name": "conv2d", "out_channels": 2, "kernel_size": 1}, "relu6",
                                    {"name": "conv2d", "out_channels": 6, "kernel_size": 1}, "hardsigmoid"]},
        {"name": "gate", "layers": [{"name": "zero_pad2d", "padding": 1}, {"name": "conv2d", "out_channels": 6, "kernel_size": 3}, "sigmoid"]},
        "relu6", "flatten", LAST],
}
