"""The PyTorch models of the benchmarks."""

import torch
from support import REPOSITORY, import_file

_models = import_file(REPOSITORY / "scripts" / "bench" / "peers" / "torch_models.py")
Net, Mlp, LeNet, resnet18 = _models.Net, _models.Mlp, _models.LeNet, _models.resnet18
MODELS = {"net": Net, "mlp": Mlp, "lenet": LeNet, "resnet18": resnet18}


def shuffled(count, seed):
    """Returns the sample order of an epoch. `seed`: the seed of the run plus the epoch number."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def training(model, optimizer, batches, loss=torch.nn.functional.cross_entropy, before_update=lambda: None):
    """Takes a training step for each (images, labels) and yields its loss."""
    for images, labels in batches:
        optimizer.zero_grad()
        value = loss(model(images), labels)
        value.backward()
        before_update()
        optimizer.step()
        yield value.item()
