"""Counts launches, copies and waits of a step on mock GPUs. A test fails if a count grows; if a count falls, lower its limit here."""

import pytest
from fake_gpus import ON_GPU, RESNET18, TINY, fake_gpus, needs_fake_gpus, reports
from support import swept, train

pytestmark = needs_fake_gpus

STEPS = 20  # per epoch of ON_GPU
# Nodes of the captured step on one GPU (kernels, fills and copies), including those that gather its samples.
NODES = {"net": 24, "lenet": 29, "mlp": 19, "resnet18": 156}
STEPS_OF = {  # options that do not change the number of nodes
    **{model: (model, {"precision": "bf16"}) for model in NODES},
    "net in fp32": ("net", {"precision": "fp32"}),
    "resnet18, deterministic": ("resnet18", {"precision": "bf16", "deterministic": True}),
}
AT_ONCE = 16  # train::GraphedStep::kStepsAtOnce
REPLAYS = STEPS // AT_ONCE + STEPS % AT_ONCE  # per epoch
# Counts per epoch including the evaluation, which has most of the launches. Each replay is followed by a copy of its sums.
# The host waits for the device at the end of the epoch and for the result of the evaluation; in the first epoch also at the
# end of the first, short synchronisation intervals and for the graph capture.
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
    """Returns the counts that one more epoch adds, for each rank, and the first rank's graphs."""
    one, two = (counts_of(folder, epochs, TINY | {"precision": "bf16"} | changes, gpus) for epochs in (2, 3))
    return [{name: after[name] - before[name] for name in ("eager_launches", "replays", "copies", "synchronizations")}
            for before, after in zip(one, two)], two[0]["graphs"]


@pytest.mark.parametrize("step", swept(STEPS_OF, NODES))
def test_a_captured_step_stays_within_its_node_budget(tmp_path, step):
    model, changes = STEPS_OF[step]
    (report,) = counts_of(tmp_path, 1, of(model) | changes)
    assert nodes(report) <= NODES[model], report["graphs"]


def check_replays(ranks):
    for counts in ranks:
        assert counts["replays"] == REPLAYS
        assert all(counts[what] <= most for what, most in MOST.items()), counts


def test_an_epoch_of_graph_replays_has_few_other_launches_and_as_many_kernels_as_eager_steps(tmp_path):
    captured, (one, many) = of_an_epoch(tmp_path, {"cuda_graphs": "on"})
    check_replays(captured)
    assert many["kernels"] == AT_ONCE * one["kernels"]
    (tmp_path / "eager").mkdir()
    (eager,), no_graphs = of_an_epoch(tmp_path / "eager", {"cuda_graphs": "off"})
    assert eager["replays"] == 0 and not no_graphs
    # An eager step also copies the learning rate.
    assert eager["eager_launches"] == captured[0]["eager_launches"] + STEPS * (one["kernels"] + 1)


def test_an_epoch_of_graph_replays_on_two_gpus_has_few_other_launches(tmp_path):
    check_replays(of_an_epoch(tmp_path, {}, gpus=2)[0])
