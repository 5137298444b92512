"""Losses and weights follow those that PyTorch computes here, from the same initial weights."""

import functools

import pytest
from support import averaging, import_torch, read_mnist, relative_difference, train

torch = import_torch()

from torch_models import Net, training  # noqa: E402  (needs torch)

STEPS = 20
SAMPLES = 250  # all of them in every batch, so that their order does not matter; 3 processes take 84, 83 and 83
# Slow enough that a pooling which takes the other of two nearly equal pixels stays within the tolerance: with larger
# steps PyTorch's own losses in fp32 and fp64 part by more than 1e-5.
OPTIMIZERS = {
    "plain": {"sgd_momentum": 0, "learning_rate": 0.02},
    "momentum": {"sgd_momentum": 0.9, "learning_rate": 0.002},
    "nesterov and weight decay": {"sgd_momentum": 0.9, "learning_rate": 0.002, "nesterov": True, "weight_decay": 0.05},
}


@pytest.fixture(scope="module")
def initial_weights(tmp_path_factory):
    """As any script with PyTorch would save them."""
    path = tmp_path_factory.mktemp("initial") / "initial.pt"
    torch.manual_seed(5)
    torch.save(Net().state_dict(), path)
    return path


@pytest.fixture(scope="module")
def pytorch(initial_weights):
    """The 20 losses and the final weights, computed once for each optimizer."""
    images, labels = map(torch.from_numpy, read_mnist("train", SAMPLES))

    @functools.cache
    def compute(name):
        options = OPTIMIZERS[name]
        model = Net()
        model.load_state_dict(torch.load(initial_weights, weights_only=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=options["learning_rate"], momentum=options["sgd_momentum"],
                                    nesterov=options.get("nesterov", False),
                                    weight_decay=options.get("weight_decay", 0))
        losses = list(training(model, optimizer, STEPS * [(images, labels)], torch.nn.functional.nll_loss))
        return losses, {key: tensor.numpy() for key, tensor in model.state_dict().items()}

    return compute


@pytest.mark.parametrize("name, processes, strategy", [
    ("momentum", 1, "auto"), ("momentum", 2, "shared_memory"), ("momentum", 3, "bucketed"), ("plain", 2, "bucketed"),
    ("nesterov and weight decay", 3, "flat")])
def test_full_batch_training_follows_pytorch(tmp_path, initial_weights, pytorch, name, processes, strategy):
    config = OPTIMIZERS[name] | averaging(strategy) | {
        "epochs": STEPS, "batch_size": SAMPLES, "model": {"name": "net", "weights": str(initial_weights)},
        "data": {"limit_train": SAMPLES, "limit_test": 10}, "checkpoint": {"every_epochs": 0, "keep_best": False},
    }
    folder = train(tmp_path, config, processes=processes)
    losses, weights = pytorch(name)
    assert losses[-1] < 0.98 * losses[0]
    assert [step["loss"] for step in folder.steps()] == pytest.approx(losses, rel=1e-5)
    assert [step["step"] for step in folder.steps()] == list(range(1, STEPS + 1))
    assert relative_difference(folder.weights(), weights) < 1e-2


def test_the_optimizers_differ_by_more_than_the_tolerance(pytorch):
    losses = [pytorch(name)[0] for name in OPTIMIZERS]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert losses[one][-1] != pytest.approx(losses[other][-1], rel=1e-3)
