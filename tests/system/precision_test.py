"""Tests bf16 training, compressed gradients, and overflows."""

import re

import numpy
import pytest
from safetensors_file import write_safetensors
from support import relative_difference, train


def test_bf16_training_is_close_to_fp32(tmp_path):
    exact, rounded = (train(tmp_path, {"precision": precision}, processes=3, output=precision) for precision in ("fp32", "bf16"))
    assert rounded.summary()["precision"] == "bf16"
    assert rounded.losses() == pytest.approx(exact.losses(), rel=0.02)
    assert rounded.summary()["test_accuracy"] == pytest.approx(exact.summary()["test_accuracy"], abs=0.03)
    assert all(tensor.dtype == "float32" for tensor in rounded.weights().values())


def test_losses_match_on_processors_with_fewer_instruction_sets(tmp_path):
    """Disables instruction sets of this CPU; if it lacks them anyway, both runs use the same code."""
    variables = {"MNIST_TRAIN_TEST_WITHOUT": "avx512"}
    for name, precision, tolerance in (("net", "fp32", 1e-4), ("net", "bf16", 0.02)):
        changes = {"epochs": 1, "max_steps": 10, "log_interval": 1, "model": {"name": name}, "precision": precision}
        whole = train(tmp_path, changes, processes=2, output=f"{name}-{precision}")
        without = train(tmp_path, changes, processes=2, output=f"{name}-{precision}-without", variables=variables)
        assert without.losses() == pytest.approx(whole.losses(), rel=tolerance)
    for missing in ("avx512", "bf16"):
        auto = train(tmp_path, {"max_steps": 1, "precision": "auto"}, output=f"auto-{missing}", variables={"MNIST_TRAIN_TEST_WITHOUT": missing})
        assert auto.summary()["precision"] == "fp32"


def test_compressed_gradients_differ_only_by_rounding(tmp_path):
    exact = train(tmp_path, {"max_steps": 5}, processes=2, output="exact")
    for compression, tolerance, strategy in (("fp16", 2e-3, "flat"), ("bf16", 2e-2, "bucketed")):
        changes = {"max_steps": 5, "gradient_averaging": {"strategy": strategy, "compression": compression}}
        compressed = train(tmp_path, changes, processes=2, output=compression)
        assert 1e-7 < relative_difference(compressed.weights(), exact.weights()) < tolerance
        # The statistics that are sent with the gradients are not rounded.
        assert compressed.epochs()[0]["train_loss"] == pytest.approx(exact.epochs()[0]["train_loss"], rel=1e-3)


OVERFLOWS = [
    *((2, {"gradient_averaging": {"strategy": strategy}}) for strategy in ("bucketed", "shared_memory")),
    (3, {"precision": "bf16", "max_gradient_norm": 1}),
    (2, {"deterministic": {"shards": 3}}),
]


def overflowing(folder):
    """Returns config changes with weights and large pixel values for which the loss is finite, but the gradient of conv1.weight overflows."""
    draw = numpy.random.default_rng(1)
    shapes = {"conv1": (20, 1, 5, 5), "conv2": (50, 20, 5, 5), "fc1": (500, 800), "fc2": (10, 500)}
    weights = {f"{name}.bias": draw.uniform(-0.2, 0.2, shape[0]) for name, shape in shapes.items()}
    for (name, shape), scale in zip(shapes.items(), (0, 0.04, 0.04, 4e4)):
        weights[f"{name}.weight"] = draw.uniform(-scale, scale, shape)
    write_safetensors(folder / "weights.safetensors", {name: array.astype("f4") for name, array in weights.items()})
    return {"model": {"name": "net", "weights": str(folder / "weights.safetensors")}, "data": {"normalize": {"mean": [0], "std": [1e-37]}}}


def assert_nothing_is_saved(folder, changes, processes):
    saving = {"checkpoint": {"every_steps": 1}, "optimizer": "adam", "ema": {"decay": 0.9}}
    failed = train(folder, {**saving, **changes}, processes=processes, expect=1)
    assert set(re.findall(r"at step (\d+) the loss is finite, but the weight update is not: lower learning_rate", failed.stderr)) == {"1"}
    assert "restart" not in failed.stderr and failed.summary()["status"] == "failed"
    assert not failed.checkpoints() and not failed.steps() and not (failed.path / "model.pt").exists()


@pytest.mark.parametrize("processes, changes", OVERFLOWS, ids=str)
def test_a_gradient_that_overflows_under_a_finite_loss_ends_the_run_before_anything_is_saved(tmp_path, processes, changes):
    assert_nothing_is_saved(tmp_path, {**overflowing(tmp_path), **changes}, processes)


@pytest.mark.parametrize("strategy", ["flat", "bucketed"])
def test_a_gradient_sum_too_large_for_fp16_ends_the_run_before_anything_is_saved(tmp_path, strategy):
    changes = {"gradient_averaging": {"strategy": strategy, "compression": "fp16"}, "data": {"normalize": {"mean": [0], "std": [1e-6]}}}
    assert_nothing_is_saved(tmp_path, changes, 2)
    changes["gradient_averaging"]["compression"] = "bf16"
    train(tmp_path, {**changes, "max_steps": 1}, processes=2, output="bf16")


@pytest.mark.parametrize("processes, changes", [
    (1, {"max_gradient_norm": 1, "data": {"normalize": {"mean": [0], "std": [1e-25]}}}),
    (2, {"learning_rate": 1e38, "optimizer": "sgd", "data": {"normalize": {"mean": [0], "std": [1e-5]}}})], ids=["norm", "weights"])
def test_a_norm_or_a_weight_that_overflows_ends_the_run_before_anything_is_saved(tmp_path, processes, changes):
    assert_nothing_is_saved(tmp_path, changes, processes)
