"""Training and evaluation do not depend on how many processes share the work."""

import json
import statistics

import pytest
from support import SMALL, STRATEGIES, averaging, relative_difference, run, swept, train, write_config

TOLERANCE = 1e-4
STEPS = 20

# Each with 20 steps, and how many processes make it special. Batches are small: rounding now and then turns which of
# two nearly equal pixels a pooling takes, and so a gradient by more than rounding, the likelier the more samples.
WORKLOADS = {
    "even batches": ({"batch_size": 30, "max_steps": STEPS}, (2, 3)),
    "batches that do not divide": ({"batch_size": 4, "max_steps": STEPS}, (3,)),
    "fewer samples than processes": ({"batch_size": 2, "max_steps": STEPS}, (3,)),
    "a tail of one sample": ({"batch_size": 32, "epochs": 10, "data": {"limit_train": 33}}, (2, 3)),
}
CASES = [(workload, processes, strategy)
         for workload, (_, counts) in WORKLOADS.items() for processes in counts for strategy in STRATEGIES]
QUICK = [("even batches", 2, "shared_memory"), ("even batches", 3, "flat"), ("batches that do not divide", 3, "bucketed"),
         ("fewer samples than processes", 3, "shared_memory"), ("a tail of one sample", 2, "bucketed"),
         ("a tail of one sample", 3, "flat")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same workload on one process, trained once."""
    known = {}

    def run_of(workload):
        if workload not in known:
            known[workload] = train(tmp_path_factory.mktemp("alone"), WORKLOADS[workload][0])
        return known[workload]

    return run_of


@pytest.mark.parametrize("workload, processes, strategy", swept(CASES, QUICK))
def test_weights_are_those_of_one_process(tmp_path, alone, workload, processes, strategy):
    folder = train(tmp_path, WORKLOADS[workload][0] | averaging(strategy), processes=processes)
    summary, expected = folder.summary(), alone(workload).summary()
    assert (summary["world_size"], summary["gradient_averaging"], summary["backend"]) == (processes, strategy, "gloo")
    assert summary["steps"] == expected["steps"] == STEPS
    assert summary["samples_seen"] == expected["samples_seen"]
    assert relative_difference(folder.weights(), alone(workload).weights()) < TOLERANCE


def test_the_comparison_sees_another_order_of_samples(tmp_path, alone):
    other = train(tmp_path, WORKLOADS["even batches"][0] | {"seed": 2}).weights()
    assert relative_difference(other, alone("even batches").weights()) > 100 * TOLERANCE


@pytest.mark.parametrize("processes, strategy", swept([(2, "flat"), (3, "bucketed")], [(2, "flat")]))
def test_weights_of_the_real_batch_size_are_those_of_one_process(tmp_path, processes, strategy):
    differences = []
    for seed in (1, 3, 42):  # the middle one of three: see the remark on WORKLOADS
        config = {"max_steps": STEPS, "seed": seed, "data": {"limit_train": 60000, "limit_test": 10}}
        one = train(tmp_path, config, output=f"one{seed}")
        several = train(tmp_path, config | averaging(strategy), processes=processes, output=f"several{seed}")
        differences.append(relative_difference(several.weights(), one.weights()))
    assert statistics.median(differences) < TOLERANCE, differences


@pytest.mark.parametrize("strategy", swept(list(STRATEGIES), ["shared_memory"]))
def test_a_batch_size_per_process_is_that_times_the_processes(tmp_path, strategy):
    common = {"max_steps": 5} | averaging(strategy)
    of_all = train(tmp_path, common | {"batch_size": 60}, processes=3, output="all")
    config = {key: value for key, value in SMALL.items() if key != "batch_size"}
    path = tmp_path / "each.json"
    path.write_text(json.dumps(config | common | {"batch_size_per_process": 20}))
    result = run("--config", path, "--output", tmp_path / "each", "--nproc-per-node", 3)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "each/model.pt").read_bytes() == (of_all.path / "model.pt").read_bytes()


def test_an_epoch_sees_every_sample_once_on_any_number_of_processes(tmp_path, alone):
    expected = [epoch["train_accuracy"] * 33 for epoch in alone("a tail of one sample").epochs()]
    assert expected == pytest.approx([round(count) for count in expected])
    for processes in (2, 3):
        folder = train(tmp_path, WORKLOADS["a tail of one sample"][0], processes=processes, output=f"run{processes}")
        assert folder.summary()["samples_seen"] == 10 * 33
        assert [epoch["train_accuracy"] * 33 for epoch in folder.epochs()] == pytest.approx(expected)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return train(tmp_path_factory.mktemp("model"), {"max_steps": STEPS}).path / "model.pt"


@pytest.mark.parametrize("samples", [1001, 2])
def test_evaluation_counts_each_sample_once(tmp_path, model, samples):
    config = write_config(tmp_path, {"test_batch_size": 100, "data": {"limit_test": samples}})
    results = []
    for processes in (1, 2, 3):
        result = run("evaluate", "--checkpoint", model, "--config", config, "--nproc-per-node", processes)
        assert result.returncode == 0, result.stderr
        results.append(json.loads(result.stdout))
        assert list(results[-1]) == ["test_loss", "test_accuracy", "samples"]
    assert [result["samples"] for result in results] == [samples] * 3
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"] == results[2]["test_accuracy"]
    for result in results[1:]:
        assert result["test_loss"] == pytest.approx(results[0]["test_loss"], rel=1e-6)
