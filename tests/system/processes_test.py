"""Training and evaluation do not depend on the number of processes."""

import functools

import pytest
from support import averaging, merged, printed_json, relative_difference, train, write_config

TOLERANCE = 1e-4
STEPS = 20

# 20 steps each. Batches are small because rounding can change which of two nearly equal pixels max pooling selects, which changes
# the gradient by more than rounding; this is more likely with more samples.
WORKLOADS = {
    "batches that do not divide evenly": {"batch_size": 4, "max_steps": STEPS},
    "fewer samples than processes": {"batch_size": 2, "max_steps": STEPS},
    "a last batch of one sample": {"batch_size": 32, "epochs": 10, "data": {"limit_train": 33}},
}
CASES = [("batches that do not divide evenly", 3, "bucketed"), ("fewer samples than processes", 3, "shared_memory"),
         ("a last batch of one sample", 3, "flat")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Returns a cached function from a workload to its run on one process."""
    return functools.cache(lambda workload: train(tmp_path_factory.mktemp("alone"), WORKLOADS[workload]))


@pytest.mark.parametrize("workload, processes, strategy", CASES)
def test_weights_match_those_of_one_process(tmp_path, alone, workload, processes, strategy):
    folder = train(tmp_path, WORKLOADS[workload] | averaging(strategy), processes=processes)
    summary, expected = folder.summary(), alone(workload).summary()
    assert (summary["world_size"], summary["gradient_averaging"], summary["backend"]) == (processes, strategy, "gloo")
    assert summary["steps"] == expected["steps"] == STEPS
    assert summary["samples_seen"] == expected["samples_seen"]
    assert relative_difference(folder.weights(), alone(workload).weights()) < TOLERANCE
    if workload == "a last batch of one sample":
        counts = [[epoch["train_accuracy"] * 33 for epoch in each.epochs()] for each in (folder, alone(workload))]
        assert summary["samples_seen"] == 10 * 33 and counts[0] == pytest.approx(counts[1])
        assert counts[1] == pytest.approx([round(count) for count in counts[1]])


def test_the_comparison_detects_a_different_sample_order(tmp_path, alone):
    workload = "batches that do not divide evenly"
    other = train(tmp_path, WORKLOADS[workload] | {"seed": 2}).weights()
    assert relative_difference(other, alone(workload).weights()) > 100 * TOLERANCE


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return train(tmp_path_factory.mktemp("model"), {"max_steps": STEPS}).path / "model.pt"


def test_evaluation_counts_each_sample_once(tmp_path, model):
    config = write_config(tmp_path, {"test_batch_size": 100, "data": {"limit_test": 1001}})
    one, three = (printed_json("evaluate", "--checkpoint", model, "--config", config, "--nproc-per-node", processes)
                  for processes in (1, 3))
    assert list(three) == ["test_loss", "test_accuracy", "test_balanced_accuracy", "test_top5_accuracy", "samples", "classes"]
    assert one["samples"] == three["samples"] == 1001
    assert one["test_accuracy"] == three["test_accuracy"]
    assert three["test_loss"] == pytest.approx(one["test_loss"], rel=1e-6)


def test_batch_size_per_process_is_multiplied_by_the_number_of_processes(tmp_path):
    of_all = train(tmp_path, {"max_steps": 5, "batch_size": 60}, processes=3, output="all")
    each = train(tmp_path, {"max_steps": 5, "batch_size": None, "batch_size_per_process": 20}, processes=3, output="each")
    assert each.digest() == of_all.digest()


def test_global_mixup_on_one_process_causes_a_warning(tmp_path):
    config = {"max_steps": 10, "data": {"augment": [{"name": "mixup", "weight": 0.5, "scope": "global"}]}}
    plain = train(tmp_path, merged(config, {"data": {"augment": []}}), output="plain")
    alone = train(tmp_path, config, output="alone")
    assert "mixup with scope global" in alone.stderr
    assert relative_difference(alone.weights(), plain.weights()) < TOLERANCE
    pair = train(tmp_path, config, processes=2, output="pair").weights()
    assert relative_difference(pair, plain.weights()) > 100 * TOLERANCE
