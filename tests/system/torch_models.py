"""The models as PyTorch has them: those that the benchmarks train."""

import importlib.util
from pathlib import Path

import torch

_path = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "peers" / "torch_models.py"
_spec = importlib.util.spec_from_file_location("peers_torch_models", _path)
_models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_models)
Net, Mlp, LeNet, resnet18 = _models.Net, _models.Mlp, _models.LeNet, _models.resnet18
MODELS = {"net": Net, "mlp": Mlp, "lenet": LeNet, "resnet18": resnet18}


def training(model, optimizer, batches, loss=torch.nn.functional.cross_entropy, before_update=lambda: None):
    """Takes a step for each (images, labels), and yields its loss after it."""
    for images, labels in batches:
        optimizer.zero_grad()
        value = loss(model(images), labels)
        value.backward()
        before_update()
        optimizer.step()
        yield value.item()
