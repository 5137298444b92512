"""Every model and schedule matches PyTorch on any number of processes; parameters_test.py compares all optimizers."""

import functools

import pytest
from support import averaging, import_torch, read_mnist, relative_difference, train

torch = import_torch()
functional = torch.nn.functional

from torch_models import MODELS, training  # noqa: E402  (needs torch)

SAMPLES = {"net": 250, "mlp": 100, "lenet": 100, "resnet18": 25}  # each batch has all of them, so their order does not matter
STEPS = {"net": 20, "mlp": 20, "lenet": 20, "resnet18": 2}
SEEDS = {"net": 5, "mlp": 7, "lenet": 7, "resnet18": 7}  # for the initial weights
PRECISE = 1e-5  # relative tolerance of losses
# Rounding errors grow through twenty batch norms: PyTorch's own fp32 and fp64 losses differ by 6e-4, or 1e-3 with channels_last.
TOLERANCE = {"resnet18": 2e-3}


def read_batch(samples):
    return tuple(map(torch.from_numpy, read_mnist("train", samples)))


@pytest.fixture(scope="module")
def initial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("initial")
    paths = {}
    for name, make in MODELS.items():
        torch.manual_seed(SEEDS[name])
        paths[name] = folder / f"{name}.pt"
        torch.save(make().state_dict(), paths[name])
    return paths


@functools.cache
def losses_of_pytorch(name, path, make_optimizer, factor=lambda step: 1, loss=functional.cross_entropy, clip=float("inf")):
    images, labels = read_batch(SAMPLES[name])
    model = MODELS[name]()
    model.load_state_dict(torch.load(path, weights_only=True))
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses = []
    for value in training(model, optimizer, STEPS[name] * [(images, labels)], loss,
                          lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), clip)):
        losses.append(value)
        scheduler.step()
    return losses, {key: tensor.numpy() for key, tensor in model.state_dict().items()}


def train_ours(folder, name, path, changes, processes, output="run"):
    samples = SAMPLES[name]
    config = {
        "epochs": STEPS[name], "batch_size": samples, "sgd_momentum": 0, "model": {"name": name, "weights": str(path)},
        "data": {"limit_train": samples, "limit_test": 10}, "checkpoint": {"every_epochs": 0, "keep_best": False},
    }
    return train(folder, config | changes, processes=processes, output=output)


def check(folder, name, initial, changes, processes, make_optimizer, **others):
    run = train_ours(folder, name, initial[name], changes, processes)
    losses, weights = losses_of_pytorch(name, initial[name], make_optimizer, **others)
    assert run.losses() == pytest.approx(losses, rel=TOLERANCE.get(name, PRECISE))
    assert losses[-1] != pytest.approx(losses[0], rel=1e-3)
    return run, weights


def sgd(rate):
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


# Learning rates are so low that losses stay within the tolerance even if rounding changes which of two nearly equal pixels max
# pooling selects. With larger steps, PyTorch's own fp32 and fp64 losses differ by more than 1e-5.
SGD = {
    "plain": {"sgd_momentum": 0, "learning_rate": 0.02},
    "momentum": {"sgd_momentum": 0.9, "learning_rate": 0.002},
    "nesterov and weight decay": {"sgd_momentum": 0.9, "learning_rate": 0.002, "nesterov": True, "weight_decay": 0.05},
}


@functools.cache
def optimizer_of(name):
    options = SGD[name]
    return lambda parameters: torch.optim.SGD(parameters, lr=options["learning_rate"], momentum=options["sgd_momentum"],
                                              nesterov=options.get("nesterov", False), weight_decay=options.get("weight_decay", 0))


@pytest.mark.parametrize("name, processes, strategy", [
    ("momentum", 2, "shared_memory"), ("plain", 3, "bucketed"), ("nesterov and weight decay", 3, "flat")])
def test_sgd_matches_pytorch_with_every_averaging_strategy(tmp_path, initial, name, processes, strategy):
    run, weights = check(tmp_path, "net", initial, SGD[name] | averaging(strategy), processes, optimizer_of(name), loss=functional.nll_loss)
    assert run.losses()[-1] < 0.98 * run.losses()[0]
    assert [step["step"] for step in run.steps()] == list(range(1, STEPS["net"] + 1))
    assert relative_difference(run.weights(), weights) < 1e-2


def test_sgd_variants_differ_by_more_than_the_tolerance(initial):
    losses = [losses_of_pytorch("net", initial["net"], optimizer_of(name), loss=functional.nll_loss)[0] for name in SGD]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert losses[one][-1] != pytest.approx(losses[other][-1], rel=1e-3)


@pytest.mark.parametrize("name, processes", [("mlp", 2), ("lenet", 3)])
def test_every_model_matches_pytorch(tmp_path, initial, name, processes):
    run, weights = check(tmp_path, name, initial, {"learning_rate": 0.01}, processes, sgd(0.01))
    assert relative_difference(run.weights(), weights) < 1e-3


def test_resnet18_matches_pytorch_with_synchronised_batch_norm(tmp_path, initial):
    changes = {"learning_rate": 0.001, "sync_batch_norm": True}
    run, weights = check(tmp_path, "resnet18", initial, changes, 2, sgd(0.001))
    assert run.weights()["1.num_batches_tracked"] == STEPS["resnet18"]
    # Gradients of biases before a batch norm are pure rounding error.
    ours = run.weights()
    assert list(ours) == list(weights)
    large = {name: tensor for name, tensor in weights.items() if tensor.ndim > 1 or "running" in name}
    assert relative_difference({name: ours[name] for name in large}, large) < 2e-3


@pytest.mark.sweep
def test_unsynchronised_batch_norm_differs_from_synchronised(tmp_path, initial):
    def first_loss(output, synchronised):
        changes = {"learning_rate": 0.01, "sync_batch_norm": synchronised, "max_steps": 1}
        return train_ours(tmp_path, "resnet18", initial["resnet18"], changes, 2, output=output).losses()[0]

    assert first_loss("each", False) != pytest.approx(first_loss("all", True), rel=1e-4)


@pytest.mark.parametrize("schedule, make", [
    # Each epoch has one step here, so schedules per epoch and per step are the same.
    ({"name": "step", "step_epochs": 5, "gamma": 0.5}, ("StepLR", {"step_size": 5, "gamma": 0.5})),
    ({"name": "linear", "final_factor": 0.1},
     ("LinearLR", {"start_factor": 1.0, "end_factor": 0.1, "total_iters": 20})),
    ({"name": "cosine"}, ("CosineAnnealingLR", {"T_max": 20})),
    ({"name": "one_cycle", "max_learning_rate": 0.03},
     ("OneCycleLR", {"max_lr": 0.03, "total_steps": 20, "cycle_momentum": False})),
    ({"name": "one_cycle", "max_learning_rate": 0.03, "pct_start": 0.6, "div_factor": 5, "final_div_factor": 50},
     ("OneCycleLR", {"max_lr": 0.03, "total_steps": 20, "pct_start": 0.6, "div_factor": 5, "final_div_factor": 50,
                     "cycle_momentum": False})),
])
def test_every_schedule_matches_pytorch(tmp_path, schedule, make):
    kind, arguments = make
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.02)
    theirs = getattr(torch.optim.lr_scheduler, kind)(optimizer, **arguments)
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    run = train(tmp_path, {"epochs": 20, "batch_size": 20, "learning_rate": 0.02, "schedule": schedule,
                           "model": {"name": "mlp", "hidden": [8]}, "data": {"limit_train": 20, "limit_test": 10},
                           "checkpoint": {"every_epochs": 0, "keep_best": False}})
    assert [step["learning_rate"] for step in run.steps()] == pytest.approx(rates, rel=1e-6, abs=1e-12)


def test_warm_up_smoothing_and_clipping_match_pytorch(tmp_path, initial):
    changes = {"learning_rate": 0.05, "schedule": {"warmup_epochs": 4}, "label_smoothing": 0.1, "max_gradient_norm": 0.5}
    check(tmp_path, "mlp", initial, changes, 2, sgd(0.05), factor=lambda step: min(1, (step + 1) / 4), clip=0.5,
          loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1))
