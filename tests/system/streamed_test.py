"""Decoding images during training gives the same results as decoding them before training."""

import json
import shutil
from pathlib import Path

import pytest
from support import (BINARY, environment, merged, printed_json, rank_variables, relative_difference, run, run_program,
                     small_mnist, swept, train, write_config)

COUNT = 900
TOLERANCE = 1e-5
# Sets all keys that select or change samples.
BUSY = {
    "epochs": 2, "batch_size": 64,
    "data": {
        "dataset": None, "format": "image-folder", "limit_train": COUNT, "limit_test": 150, "validation": 0.1, "size": 24,
        "augment": ["horizontal_flip", {"name": "random_crop", "padding": 2}, {"name": "mixup", "alpha": 0.4}],
    },
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Returns a folder with the first samples of MNIST as an LMDB of JPEGs and as class folders of PNGs."""
    folder = tmp_path_factory.mktemp("sets")
    for target in ("lmdb", "image-folder"):
        run("convert", "--from", f"idx:{small_mnist().name}/mnist", "--to", f"{target}:{folder / target}", expect=0)
    return folder


def config_of(sets, name="image-folder", **data):
    halves = {half: str(sets / name / half) for half in ("train", "test")}
    return merged(BUSY, {"data": halves | {"format": name} | data})


def trained_on(folder):
    """Returns the number of training samples."""
    samples = sum(entry["train"] for entry in folder.read_json("dataset.json")["classes"])
    assert abs(samples - 0.9 * COUNT) <= 5
    return samples


@pytest.fixture(scope="module")
def decoded_before(tmp_path_factory, sets):
    """Returns the runs with images decoded before training, by number of processes."""
    folder = tmp_path_factory.mktemp("before")
    return {count: train(folder, config_of(sets), processes=count, output=str(count)) for count in (1, 2)}


def test_a_run_may_decode_at_another_time_when_it_resumes(tmp_path, sets, decoded_before):
    shutil.copytree(decoded_before[1].path, tmp_path / "run")
    longer = config_of(sets, decode="stream") | {"epochs": 3}
    refused = train(tmp_path, merged(longer, {"data": {"limit_train": COUNT - 1}}), "--resume", "auto", expect=5).stderr
    assert "different data: data.limit_train was 900 and is now 899; to start" in refused
    resumed = train(tmp_path, longer, "--resume", "auto")
    assert resumed.digest() == train(tmp_path, config_of(sets) | {"epochs": 3}, output="whole").digest()


@pytest.mark.parametrize("processes", swept([1, 2], [2]))
def test_streaming_trains_bit_identically(tmp_path, sets, decoded_before, processes):
    folder = train(tmp_path, config_of(sets, decode="stream", decode_threads=3), processes=processes)
    before = decoded_before[processes]
    assert folder.digest() == before.digest()
    for name in ("accuracies.json", "predictions.jsonl"):
        assert (folder.path / name).read_bytes() == (before.path / name).read_bytes()
    assert folder.summary()["samples_seen"] == before.summary()["samples_seen"] == 2 * trained_on(before)
    assert folder.summary()["data_hash"] != before.summary()["data_hash"]  # the hash of the file list, not of the pixels


def test_a_streamed_run_resumes_within_an_epoch_with_fewer_processes(tmp_path, sets, decoded_before):
    config = config_of(sets, decode="stream")
    train(tmp_path, merged(config, {"max_steps": 5}), processes=2)
    folder = train(tmp_path, merged(config, {"max_steps": None}), "--resume", "auto", processes=1)
    assert folder.summary()["samples_seen"] == 2 * trained_on(folder)
    assert relative_difference(folder.weights(), decoded_before[1].weights()) < TOLERANCE


@pytest.mark.sweep
def test_streaming_works_with_train_per_process_and_split_by_throughput(tmp_path, sets):
    own = [str(sets / "image-folder" / "train" / name) for name in "37"]
    changes = {"train": None, "train_per_process": own, "limit_train": None, "validation": 0}
    config = merged(config_of(sets, **changes), {"epochs": 1, "max_steps": 20})
    shutil.copytree(sets / "image-folder" / "test" / "3", tmp_path / "test" / "3")
    shutil.copytree(sets / "image-folder" / "test" / "7", tmp_path / "test" / "7")
    config["data"] |= {"test": str(tmp_path / "test"), "limit_test": None}
    before = train(tmp_path, config, processes=2, output="before")
    streamed = train(tmp_path, merged(config, {"data": {"decode": "stream"}}), processes=2, output="streamed")
    assert streamed.digest() == before.digest()
    moving = config_of(sets, "lmdb", decode="stream", split="throughput", augment=[])
    moved = train(tmp_path, merged(moving, {"deterministic": False}), processes=3, output="moved")
    assert moved.summary()["samples_seen"] == 2 * trained_on(moved)
    even = train(tmp_path, config_of(sets, "lmdb", decode="stream", augment=[]), processes=3, output="even")
    assert relative_difference(moved.weights(), even.weights()) < 1e-4


def test_evaluate_and_preview_stream_like_training(tmp_path, sets, decoded_before):
    path = write_config(tmp_path, config_of(sets, decode="stream"))
    evaluated = printed_json("evaluate", "--checkpoint", decoded_before[1].path / "model.pt", "--config", path, "--nproc-per-node", 2)
    assert evaluated["test_accuracy"] == decoded_before[1].epochs()[-1]["test_accuracy"]
    grids = []
    for decode in ("stream", "once"):
        grid = tmp_path / f"{decode}.png"
        run("preview", "--config", path, "--set", f"data.decode={decode}", "--output", grid, "--nproc-per-node", 2, expect=0)
        grids.append(grid.read_bytes())
    assert grids[0] == grids[1]


def test_an_unusable_image_ends_the_run_or_is_skipped_from_the_start(tmp_path, sets):
    folder = tmp_path / "train"
    for name in "01":
        shutil.copytree(sets / "image-folder" / "train" / name, folder / name)
        shutil.copytree(sets / "image-folder" / "test" / name, tmp_path / "test" / name)
    bad = sorted((folder / "1").iterdir())[4:16]
    for path in bad:
        path.write_bytes(path.read_bytes()[:-30])
    good = len(list(folder.glob("*/*"))) - 12
    config = config_of(sets, train=str(folder), test=str(tmp_path / "test"), limit_train=None, limit_test=100,
                       validation=0, decode="stream")
    config = write_config(tmp_path, merged(config, {"epochs": 1, "batch_size": 512}))
    digests = []
    for decode in ("stream", "once"):
        flags = ("--config", config, "--nproc-per-node", 2, "--set", f"data.decode={decode}")
        refused = run(*flags, "--output", tmp_path / f"refused-{decode}", expect=3)
        assert any(f"{path}: corrupt PNG image" in refused.stderr for path in bad)
        assert ("to skip such samples, set data.on_bad_sample" in refused.stderr) == (decode == "once")
        assert decode == "stream" or not (tmp_path / "refused-once" / "checkpoints").exists()
        output = tmp_path / decode
        result = run(*flags, "--output", output, "--set", "data.on_bad_sample=skip", expect=0)
        assert json.loads((output / "summary.json").read_text())["samples_seen"] == good
        assert "skipped 12 unusable images (data.on_bad_sample: skip)\n" in result.stderr and "to skip such" not in result.stderr
        assert result.stderr.count("\nskipped: /") == 10 and "\nskipped: 2 more\n" in result.stderr
        digests.append((output / "model.pt").read_bytes())
        # Weights are checked before images are decoded.
        refused = run(*flags, "--output", tmp_path / "other", "--set", "data.on_bad_sample=skip", "--set", "model.name=mlp",
                      "--set", f"model.weights={output / 'model.pt'}", expect=5)
        assert "does not fit the model" in refused.stderr and "skipped" not in refused.stderr
    assert digests[0] == digests[1]


def test_without_dali_a_config_that_requires_it_reports_how_to_install_it(tmp_path, sets):
    for name in ("mnist-train", "mnist-train-worker"):
        shutil.copy(Path(BINARY).with_name(name), tmp_path / name)
    path = write_config(tmp_path, config_of(sets, decode="dali"))
    for variables in ({}, rank_variables() | {"TORCHELASTIC_RUN_ID": "none"}):
        result = run_program(tmp_path / "mnist-train", "--config", path, "--output", tmp_path / "run",
                             env=environment(**variables), expect=2)
        assert "data.decode is \"dali\"" in result.stderr and "./scripts/setup --dali" in result.stderr
        assert not (tmp_path / "run" / "metrics.jsonl").exists()
    run("--config", path, "--dry-run", expect=0)
