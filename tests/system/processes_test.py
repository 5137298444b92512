"""Training and evaluation do not depend on how many processes share the work."""

import json

import pytest
from support import SMALL, averaging, relative_difference, run, train, write_config

TOLERANCE = 1e-4
STEPS = 20

# Each has 20 steps. Batches are small: rounding now and then changes which of two nearly equal pixels a pooling takes, and so a
# gradient by more than rounding; more samples make that likelier.
WORKLOADS = {
    "even batches": {"batch_size": 30, "max_steps": STEPS},
    "batches that do not divide": {"batch_size": 4, "max_steps": STEPS},
    "fewer samples than processes": {"batch_size": 2, "max_steps": STEPS},
    "a tail of one sample": {"batch_size": 32, "epochs": 10, "data": {"limit_train": 33}},
}
CASES = [("even batches", 2, "shared_memory"), ("even batches", 3, "flat"), ("batches that do not divide", 3, "bucketed"),
         ("fewer samples than processes", 3, "shared_memory"), ("a tail of one sample", 2, "bucketed"),
         ("a tail of one sample", 3, "flat")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same workload on one process, trained once."""
    known = {}

    def run_of(workload):
        if workload not in known:
            known[workload] = train(tmp_path_factory.mktemp("alone"), WORKLOADS[workload])
        return known[workload]

    return run_of


@pytest.mark.parametrize("workload, processes, strategy", CASES)
def test_weights_are_those_of_one_process(tmp_path, alone, workload, processes, strategy):
    folder = train(tmp_path, WORKLOADS[workload] | averaging(strategy), processes=processes)
    summary, expected = folder.summary(), alone(workload).summary()
    assert (summary["world_size"], summary["gradient_averaging"], summary["backend"]) == (processes, strategy, "gloo")
    assert summary["steps"] == expected["steps"] == STEPS
    assert summary["samples_seen"] == expected["samples_seen"]
    assert relative_difference(folder.weights(), alone(workload).weights()) < TOLERANCE


def test_the_comparison_sees_another_order_of_samples(tmp_path, alone):
    other = train(tmp_path, WORKLOADS["even batches"] | {"seed": 2}).weights()
    assert relative_difference(other, alone("even batches").weights()) > 100 * TOLERANCE


def test_a_batch_size_per_process_is_that_times_the_processes(tmp_path):
    common = {"max_steps": 5}
    of_all = train(tmp_path, common | {"batch_size": 60}, processes=3, output="all")
    config = {key: value for key, value in SMALL.items() if key != "batch_size"}
    path = tmp_path / "each.json"
    path.write_text(json.dumps(config | common | {"batch_size_per_process": 20}))
    run("--config", path, "--output", tmp_path / "each", "--nproc-per-node", 3, expect=0)
    assert (tmp_path / "each/model.pt").read_bytes() == (of_all.path / "model.pt").read_bytes()


def test_an_epoch_sees_every_sample_once_on_any_number_of_processes(tmp_path, alone):
    expected = [epoch["train_accuracy"] * 33 for epoch in alone("a tail of one sample").epochs()]
    assert expected == pytest.approx([round(count) for count in expected])
    for processes in (2, 3):
        folder = train(tmp_path, WORKLOADS["a tail of one sample"], processes=processes, output=f"run{processes}")
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
        result = run("evaluate", "--checkpoint", model, "--config", config, "--nproc-per-node", processes, expect=0)
        results.append(json.loads(result.stdout))
        assert list(results[-1]) == ["test_loss", "test_accuracy", "test_balanced_accuracy", "test_top5_accuracy", "samples",
                                     "classes"]
    assert [result["samples"] for result in results] == [samples] * 3
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"] == results[2]["test_accuracy"]
    for result in results[1:]:
        assert result["test_loss"] == pytest.approx(results[0]["test_loss"], rel=1e-6)
