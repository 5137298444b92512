"""The cases of the benchmark: config, recipe for the peers, and FLOPs of each."""

from dataclasses import dataclass

import torch
from recipe import MODELS
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Case:
    model: str
    config: str  # relative to the repository
    settings: tuple = ()  # for --set
    batch_size: int = 128
    learning_rate: float = 0.01
    momentum: float = 0.5
    mean: float = 0.1307
    std: float = 0.3081
    dataset: str = "mnist"
    image_size: int = 28  # images are resized to this size
    channels: int = 1
    batch_norm: bool = False  # if true, losses depend on how a batch is split over the processes
    cpu_limit: int = 0  # limit of training and test samples on CPUs, for cases that would take hours; 0: none

    def limit(self, options):
        """Returns the number of training samples to use, 0: all."""
        return options.limit or (self.cpu_limit if options.device == "cpu" else 0)

    def test_limit(self, options):
        """Returns the number of test images to use, 0: all."""
        return min(1000, self.cpu_limit) if options.device == "cpu" else 0

    def samples(self, options):
        return self.limit(options) or 60000

    def recipe(self, options, precision):
        """Returns the recipe as flags for scripts/bench/peers/*.py."""
        values = {"model": self.model, "dataset": self.dataset, "device": options.device, "precision": precision,
                  "batch-size": self.batch_size, "learning-rate": self.learning_rate, "momentum": self.momentum,
                  "mean": self.mean, "std": self.std, "limit": self.limit(options), "test-limit": self.test_limit(options),
                  "image-size": self.image_size, "channels": self.channels}
        return [text for key, value in values.items() for text in (f"--{key}", str(value))]


CASES = {
    "net": Case("net", "configs/mnist.json"),
    "lenet": Case("lenet", "configs/gluon_lenet.json", learning_rate=0.04, momentum=0, mean=0, std=1),
    "mlp": Case("mlp", "configs/mnist.json", ("model.name=mlp",)),
    "own_network": Case("own_network", "configs/own_network.json",
                        ("sgd_momentum=0.5", "weight_decay=0", "schedule.name=constant", "schedule.warmup_epochs=0"), batch_norm=True),
    "vgg": Case("vgg", "scripts/bench/peers/vgg.json", cpu_limit=12800),
    "resnet18": Case("resnet18", "configs/fashion_mnist_resnet18.json", batch_size=256, learning_rate=0.1, momentum=0, mean=0, std=1,
                     dataset="fashion-mnist", batch_norm=True, cpu_limit=2560),
    "torchvision-resnet18": Case("torchvision-resnet18", "configs/fashion_mnist_resnet18.json",
                                 ("model.name=torchvision-resnet18", "model.init=default", "data.size=64", "data.channels=3"),
                                 batch_size=64, momentum=0, mean=0, std=1, dataset="fashion-mnist", image_size=64, channels=3,
                                 batch_norm=True, cpu_limit=2560),
}


def flops_per_sample(name):
    """Returns PyTorch's FLOP count of the model, forward and backward; a multiply-add counts twice."""
    case = CASES[name]
    model = MODELS[case.model]().eval()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, case.channels, case.image_size, case.image_size)).sum().backward()
    return counter.get_total_flops()
