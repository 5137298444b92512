"""Compares the first 200 steps of ResNet-18 with PyTorch. Takes minutes, so it is an integration test."""

from support import import_torch, read_mnist, train

torch = import_torch()

from torch_models import resnet18, training  # noqa: E402  (needs torch)

STEPS, BATCH, RATE = 200, 16, 0.002


def losses_of_pytorch(weights, dtype):
    images, labels = map(torch.from_numpy, read_mnist("train", STEPS * BATCH))
    order = torch.randperm(STEPS * BATCH, generator=torch.Generator().manual_seed(1))
    model = resnet18()
    model.load_state_dict(weights)
    model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batches = ((images[batch].to(dtype), labels[batch]) for batch in order.split(BATCH))
    return torch.tensor(list(training(model, optimizer, batches)), dtype=torch.float64)


def test_the_first_200_steps_are_as_accurate_as_in_pytorch(tmp_path):
    torch.manual_seed(7)
    weights = resnet18().state_dict()
    torch.save(weights, tmp_path / "initial.pt")
    exact = losses_of_pytorch(weights, torch.float64)
    rounded = losses_of_pytorch(weights, torch.float32)
    run = train(tmp_path, {
        "epochs": 1, "batch_size": BATCH, "learning_rate": RATE, "sgd_momentum": 0,
        "model": {"name": "resnet18", "weights": str(tmp_path / "initial.pt")},
        "data": {"limit_train": STEPS * BATCH, "limit_test": 10}, "checkpoint": {"every_epochs": 0, "keep_best": False},
    }, timeout=900)  # other tests may run concurrently on two cores
    ours = torch.tensor(run.losses(), dtype=torch.float64)
    assert len(ours) == STEPS

    def distance(losses, steps):
        return ((losses - exact).abs() / exact)[steps].mean().item()

    early, all_steps = slice(0, 20), slice(None)
    print(f"mean relative distance to fp64: first 20 steps ours {distance(ours, early):.1e}, "
          f"PyTorch {distance(rounded, early):.1e}; all 200 steps ours {distance(ours, all_steps):.1e}, "
          f"PyTorch {distance(rounded, all_steps):.1e}; loss {exact[:10].mean():.2f} -> {exact[-10:].mean():.2f}")
    assert distance(ours, early) < 3 * distance(rounded, early) + 1e-5
    assert distance(ours, all_steps) < 3 * distance(rounded, all_steps) + 1e-5
    assert exact[-10:].mean() < 0.7 * exact[:10].mean()
