"""What the benchmark trains: each case's config, its recipe for the peers, and its work."""

from dataclasses import dataclass

import torch
from recipe import MODELS
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Case:
    model: str
    config: str  # of configs/
    settings: tuple  # of --set
    goal: float  # test accuracy that time to accuracy is taken to
    batch_size: int = 128
    learning_rate: float = 0.01
    momentum: float = 0.5
    mean: float = 0.1307
    std: float = 0.3081
    dataset: str = "mnist"
    batch_norm: bool = False  # then losses depend on which samples of a batch a process has
    cpu_limit: int = 0  # training samples where a CPU would take hours for all of them

    def limit(self, options):
        """Training samples that are used, 0: all."""
        return options.limit or (self.cpu_limit if options.device == "cpu" else 0)

    def samples(self, options):
        return self.limit(options) or 60000

    def recipe(self, options, precision):
        """As flags of scripts/bench/peers/*.py."""
        values = {"model": self.model, "dataset": self.dataset, "device": options.device, "precision": precision,
                  "batch-size": self.batch_size, "learning-rate": self.learning_rate, "momentum": self.momentum,
                  "mean": self.mean, "std": self.std, "limit": self.limit(options)}
        return [text for key, value in values.items() for text in (f"--{key}", str(value))]


CASES = {
    "net": Case("net", "mnist.json", (), goal=0.96),
    "lenet": Case("lenet", "gluon_lenet.json", (), goal=0.93, learning_rate=0.04, momentum=0, mean=0, std=1),
    "mlp": Case("mlp", "mnist.json", ("model.name=mlp",), goal=0.91),
    "resnet18": Case("resnet18", "fashion_mnist_resnet18.json", (), goal=0.8, batch_size=256, learning_rate=0.1, momentum=0,
                     mean=0, std=1, dataset="fashion-mnist", batch_norm=True, cpu_limit=2560),
}


def flops_per_sample(name):
    """Of a case's model: multiply-adds count twice; forward and backward, as PyTorch counts them."""
    images = torch.zeros(1, 1, 28, 28)
    model = MODELS[CASES[name].model]()
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    return counter.get_total_flops()
