"""What a step costs a GPU in launches, copies and waits, counted on stand-in GPUs. A number that grows turns a test red;
one that falls is to be lowered here."""

import pytest
from fake_gpus import ON_GPU, fake_gpus, needs_fake_gpus, reports
from support import train

pytestmark = needs_fake_gpus

STEPS = 20  # an epoch of support.SMALL
# Nodes of the captured step on one GPU: kernels, fills and copies.
NODES = {
    ("net", "bf16"): 55, ("net", "fp32"): 52,
    ("lenet", "bf16"): 61, ("lenet", "fp32"): 58,
    ("mlp", "bf16"): 38, ("mlp", "fp32"): 35,
    ("resnet18", "bf16"): 335, ("resnet18", "fp32"): 247,
}
# Of an epoch of 20 replays of `net` with its evaluation: 6 launches and 2 copies a step bring the samples to where the graph
# reads; the rest is the evaluation's. It waits for the device as its intervals begin, at its end, and for the result.
MOST = {"eager_launches": 162, "copies": 46, "synchronizations": 8}


def nodes(report):
    (graph,) = report["graphs"]
    return sum(graph[kind] for kind in ("kernels", "copies", "fills", "others"))


def counts_of(folder, epochs, changes, gpus=1):
    report = folder / f"report-{epochs}"
    changes = ON_GPU | {"epochs": epochs, "log_interval": 1000, "checkpoint": {"every_epochs": 0, "keep_best": False}} | changes
    train(folder, changes, processes=gpus, output=f"run-{epochs}", variables=fake_gpus(gpus, report=report))
    return reports(report)


def of_an_epoch(folder, changes, gpus=1):
    """By rank: what one more epoch adds."""
    one, two = (counts_of(folder, epochs, changes, gpus) for epochs in (1, 2))
    return [{name: after[name] - before[name] for name in ("eager_launches", "replays", "copies", "synchronizations")}
            for before, after in zip(one, two)]


@pytest.mark.parametrize("model, precision", NODES, ids=lambda value: value)
def test_a_captured_step_has_no_more_nodes_than_it_had(tmp_path, model, precision):
    (report,) = counts_of(tmp_path, 1, {"model": {"name": model}, "precision": precision})
    assert nodes(report) <= NODES[model, precision], report["graphs"]


@pytest.mark.parametrize("model", ["net", "resnet18"])
def test_a_deterministic_step_has_the_nodes_of_any_other(tmp_path, model):
    (report,) = counts_of(tmp_path, 1, {"model": {"name": model}, "precision": "bf16", "deterministic": True})
    assert nodes(report) <= NODES[model, "bf16"], report["graphs"]


@pytest.mark.parametrize("gpus", [1, 2])
def test_an_epoch_of_replays_launches_little_beside_them(tmp_path, gpus):
    for counts in of_an_epoch(tmp_path, {"precision": "bf16"}, gpus):
        assert counts["replays"] == STEPS
        assert all(counts[what] <= most for what, most in MOST.items()), counts
