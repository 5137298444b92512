"""Launches, copies and waits of a step, counted on mock GPUs. A count that grows fails a test; lower the limit here if it falls."""

import pytest
from fake_gpus import ON_GPU, RESNET18, TINY, fake_gpus, needs_fake_gpus, reports
from support import swept, train

pytestmark = needs_fake_gpus

STEPS = 20  # an epoch of ON_GPU
# Nodes of the captured step on one GPU, gathering its samples included: kernels, fills and copies.
NODES = {"net": 24, "lenet": 29, "mlp": 19, "resnet18": 156}
STEPS_OF = {  # how a step is computed, which changes no number of nodes
    **{model: (model, {"precision": "bf16"}) for model in NODES},
    "net in fp32": ("net", {"precision": "fp32"}),
    "resnet18, deterministic": ("resnet18", {"precision": "bf16", "deterministic": True}),
}
AT_ONCE = 16  # train::GraphedStep::kStepsAtOnce
REPLAYS = STEPS // AT_ONCE + STEPS % AT_ONCE  # of an epoch
# Of such an epoch with its evaluation, whose launches are most of them. Each replay is followed by a copy of its sums.
# The host waits for the device at the end of the epoch, and for the result; in the first epoch also as its intervals begin,
# and the graphs are captured.
MOST = {"eager_launches": 40, "copies": 11, "synchronizations": 3}


def of(model):
    return RESNET18 if model == "resnet18" else {"model": {"name": model}}


def nodes(report):
    (graph,) = report["graphs"]
    return sum(graph[kind] for kind in ("kernels", "copies", "fills", "others"))


def counts_of(folder, epochs, changes, gpus=1):
    report = folder / f"report-{epochs}"
    changes = ON_GPU | {"epochs": epochs, "log_interval": 1000, "checkpoint": {"every_epochs": 0, "keep_best": False}} | changes
    train(folder, changes, processes=gpus, output=f"run-{epochs}", variables=fake_gpus(gpus, report=report))
    return reports(report)


def of_an_epoch(folder, changes, gpus=1):
    """By rank, the counts that one more epoch adds."""
    one, two = (counts_of(folder, epochs, changes, gpus) for epochs in (2, 3))
    return [{name: after[name] - before[name] for name in ("eager_launches", "replays", "copies", "synchronizations")}
            for before, after in zip(one, two)]


@pytest.mark.parametrize("step", swept(STEPS_OF, NODES))
def test_a_captured_step_has_no_more_nodes_than_before(tmp_path, step):
    model, changes = STEPS_OF[step]
    (report,) = counts_of(tmp_path, 1, of(model) | changes)
    assert nodes(report) <= NODES[model], report["graphs"]


@pytest.mark.parametrize("gpus", [1, 2])
def test_an_epoch_of_replays_launches_little_beside_them(tmp_path, gpus):
    for counts in of_an_epoch(tmp_path, TINY | {"precision": "bf16"}, gpus):
        assert counts["replays"] == REPLAYS
        assert all(counts[what] <= most for what, most in MOST.items()), counts
