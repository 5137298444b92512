"""The models as PyTorch has them: those that the benchmarks train."""

import torch
from support import REPOSITORY, import_file

_models = import_file(REPOSITORY / "scripts" / "bench" / "peers" / "torch_models.py")
Net, Mlp, LeNet, resnet18 = _models.Net, _models.Mlp, _models.LeNet, _models.resnet18
MODELS = {"net": Net, "mlp": Mlp, "lenet": LeNet, "resnet18": resnet18}


def shuffled(count, seed):
    """The order of samples in an epoch; its seed is that of the run plus the number of the epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def training(model, optimizer, batches, loss=torch.nn.functional.cross_entropy, before_update=lambda: None):
    """Takes a step for each (images, labels), and yields its loss after it."""
    for images, labels in batches:
        optimizer.zero_grad()
        value = loss(model(images), labels)
        value.backward()
        before_update()
        optimizer.step()
        yield value.item()
