"""Training and evaluation do not depend on how many processes share the work."""

import json

import pytest
from support import SMALL, STRATEGIES, WORLDS, averaging, relative_difference, run, train, write_config

TOLERANCE = 1e-4
STEPS = 20

# Each with 20 steps, and what is special about it on 3 processes.
WORKLOADS = {
    "even batches": {"batch_size": 120, "max_steps": STEPS},
    "batches that do not divide": {"batch_size": 4, "max_steps": STEPS},
    "large batches that do not divide": {"batch_size": 127, "max_steps": STEPS},
    "fewer samples than processes": {"batch_size": 2, "max_steps": STEPS},
    "a tail of one sample": {"batch_size": 32, "epochs": 10, "data": {"limit_train": 33}},
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same workload on one process, trained once."""
    known = {}

    def weights_of(workload):
        if workload not in known:
            folder = train(tmp_path_factory.mktemp("alone"), WORKLOADS[workload])
            assert folder.summary()["steps"] == STEPS
            known[workload] = folder.weights()
        return known[workload]

    return weights_of


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("processes, strategy", WORLDS[1:])
def test_weights_are_those_of_one_process(tmp_path, alone, processes, strategy, workload):
    if processes == 2 and workload in ("batches that do not divide", "fewer samples than processes"):
        pytest.skip("2 processes divide this evenly")
    folder = train(tmp_path, WORKLOADS[workload] | averaging(strategy), processes=processes)
    assert folder.summary()["gradient_averaging"] == strategy
    assert folder.summary()["world_size"] == processes
    assert folder.summary()["samples_seen"] == STEPS // 10 * 5 * 33 if "tail" in workload else True
    assert relative_difference(folder.weights(), alone(workload)) < TOLERANCE


def test_the_comparison_sees_another_order_of_samples(tmp_path, alone):
    other = train(tmp_path, WORKLOADS["even batches"] | {"seed": 2}).weights()
    assert relative_difference(other, alone("even batches")) > 100 * TOLERANCE


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_batch_size_per_process_is_that_times_the_processes(tmp_path, strategy):
    common = {"max_steps": 5} | averaging(strategy)
    of_all = train(tmp_path, common | {"batch_size": 60}, processes=3, output="all")
    config = {key: value for key, value in SMALL.items() if key != "batch_size"}
    path = tmp_path / "each.json"
    path.write_text(json.dumps(config | common | {"batch_size_per_process": 20}))
    result = run("--config", path, "--output", tmp_path / "each", "--nproc-per-node", 3)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "each/model.pt").read_bytes() == (of_all.path / "model.pt").read_bytes()


def test_every_step_counts_each_sample_once_on_any_number_of_processes(tmp_path):
    accuracies = {}
    for processes in (1, 2, 3):
        folder = train(tmp_path, WORKLOADS["a tail of one sample"] | {"epochs": 2}, processes=processes,
                       output=f"run{processes}")
        assert folder.summary()["samples_seen"] == 66
        accuracies[processes] = [epoch["train_accuracy"] for epoch in folder.epochs()]
        for accuracy in accuracies[processes]:
            assert accuracy * 33 == pytest.approx(round(accuracy * 33), abs=1e-9)
    assert accuracies[1] == pytest.approx(accuracies[2]) == pytest.approx(accuracies[3])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return train(tmp_path_factory.mktemp("model"), {"max_steps": 20}).path / "model.pt"


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
