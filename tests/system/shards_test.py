"""With `deterministic: {"shards": 4}`, runs are bit-identical for 1 to 4 processes."""

import signal

import pytest
from support import averaging, merged, require_torchrun, run, send, start, stop_by_sigterm, swept, torchrun, train, write_config

# Uneven shards; the last batch of an epoch has fewer samples than shards.
BY_SHARDS = {"deterministic": {"shards": 4}, "batch_size": 46, "data": {"limit_train": 922, "limit_test": 301},
             "checkpoint": {"keep_best": False}, "test_batch_size": 50}
RESNET18 = {"epochs": 1, "batch_size": 22, "data": {"limit_train": 47, "limit_test": 20}}
MODELS = {"net": {}, "lenet": {}, "resnet18": RESNET18}
# Features that would reveal disagreement between ranks: decisions by test loss, EMA, gathered statistics, clipping, random draws.
FULL = {"schedule": {"name": "plateau", "patience": 0}, "ema": {"decay": 0.9}, "max_gradient_norm": 1, "epochs": 3,
        "label_smoothing": 0.1, "optimizer": "adam", "gradient_accumulation_steps": 2,
        "parameters": [{"match": "0.*", "frozen": True}, {"match": "6.*", "learning_rate_factor": 2}],
        "model": {"layers": [{"name": "conv2d", "out_channels": 4, "kernel_size": 5}, "batch_norm", "relu",
                             {"name": "max_pool2d", "kernel_size": 2}, {"name": "dropout", "p": 0.2}, "flatten",
                             {"name": "linear", "out_features": "classes"}]}}
AUGMENT = [{"name": "random_crop", "padding": 2, "fill": "background"}, {"name": "random_resized_crop", "size": 26, "scale": [0.5, 1]},
           "vertical_flip", {"name": "rotate", "degrees": 10, "fill": [200]}, "trivial_augment", {"name": "random_erasing", "fill": 128},
           {"name": "color_jitter", "brightness": 0.4, "contrast": [0.5, 1.5], "saturation": 0.2, "hue": 0.1}]


def config(model="lenet", precision="fp32", **changes):
    return merged(merged(merged(BY_SHARDS, {"precision": precision, "model": {"name": model}}), MODELS[model]), changes)


def results(folder):
    """Returns everything that must not depend on the number of processes."""
    return (folder.digest(), folder.read_json("accuracies.json"),
            [(epoch["train_loss"], epoch["train_accuracy"], epoch["test_loss"]) for epoch in folder.epochs()],
            [(step["step"], step["loss"]) for step in folder.steps()])


OTHERS = [  # model, (processes, strategy) to compare with one process
    ("net", [(2, "shared_memory"), (3, "flat"), (4, "shared_memory")]), ("resnet18", [(3, "shared_memory")])]


@pytest.mark.parametrize("model, others", swept(OTHERS, OTHERS[:1]))
def test_the_hash_is_the_same_for_any_number_of_processes(tmp_path, model, others):
    changes = config(model, "bf16", epochs=1)
    expected = results(train(tmp_path, changes, processes=1, output="1"))
    for processes, strategy in others:
        folder = train(tmp_path, changes | averaging(strategy), processes=processes, output=f"{processes}")
        assert folder.summary()["gradient_averaging"] == strategy
        assert results(folder) == expected, processes


@pytest.mark.parametrize("shards, precision, mix", swept([(3, "fp32", "cutmix"), (5, "bf16", "mixup")], [(3, "fp32", "cutmix")]))
def test_a_run_with_all_features_is_bit_identical_for_any_number_of_processes(tmp_path, shards, precision, mix):
    changes = merged(BY_SHARDS, FULL | {"precision": precision, "deterministic": {"shards": shards}, "data": {
        "validation": 0.1, "augment": AUGMENT + [{"name": mix, "scope": "global"}]}})
    expected = results(train(tmp_path, changes, processes=1, output="1"))
    for processes, strategy in ((2, "flat"), (3, "shared_memory")):
        folder = train(tmp_path, merged(changes, averaging(strategy)), processes=processes, output=strategy)
        assert results(folder) == expected, (processes, strategy)


def test_resuming_with_different_numbers_of_processes_is_bit_identical(tmp_path):
    changes = config("lenet", "bf16", checkpoint={"every_steps": 3}, epochs=2)
    expected = train(tmp_path, changes, processes=2, output="whole")
    steps = len(expected.steps())
    folder = stop_by_sigterm(tmp_path, changes, processes=3, step=steps // 4)
    stopped_at = folder.last_step()
    assert 0 < stopped_at < steps
    with start(tmp_path, changes | {"launch": {"max_restarts": 1}}, "--resume", "auto", processes=1) as alone:
        alone.wait_for_step(stopped_at + 2)
        alone.send(signal.SIGTERM)
        assert alone.wait() in (0, 143), alone.stderr  # the run may have finished already
    train(tmp_path, changes | {"launch": {"max_restarts": 1}}, "--resume", "auto", processes=4)
    assert results(folder) == results(expected)


@pytest.mark.sweep
def test_a_run_that_loses_a_rank_ends_bit_identically(tmp_path):
    changes = config("net", "bf16", checkpoint={"every_steps": 3}, launch={"max_restarts": 1})
    expected = results(train(tmp_path, changes, processes=1, output="whole"))
    with start(tmp_path, changes, processes=3) as process:
        process.wait_for_step(8)
        send(process.wait_for_ranks(3)[2], signal.SIGKILL)
        assert process.wait() == 0, process.stderr
    assert process.run_folder.summary()["restarts"] == 1
    assert results(process.run_folder) == expected


@pytest.mark.sweep
def test_torchrun_trains_bit_identically(tmp_path):
    require_torchrun()
    expected = results(train(tmp_path, config(), processes=2, output="own"))
    with torchrun(tmp_path, config(), "--standalone", "--nproc-per-node", 3) as process:
        assert process.wait() == 0, process.stderr
    assert process.run_folder.summary()["world_size"] == 3
    assert results(process.run_folder) == expected


def test_more_processes_than_shards_are_refused(tmp_path):
    refused = train(tmp_path, config(deterministic={"shards": 2}), processes=3, expect=2)
    assert "asks for 3 processes" in refused.stderr
    # By default, there are no more processes than shards.
    alone = tmp_path / "alone"
    run("--config", write_config(tmp_path, config(deterministic={"shards": 1})), "--output", alone, "--set",
        "max_steps=1", folder=tmp_path, expect=0)
    assert '"world_size": 1' in (alone / "summary.json").read_text()
