"""Trains, evaluates and predicts on a folder of CIFAR-10 binary batches."""

import numpy
import pytest
from pictures import write_png
from support import printed_json, printed_rows, train, write_config

BATCHES = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COUNT = 8  # records per batch
COLOURS = numpy.array([[255 if label >> bit & 1 else 40 for bit in range(3)] for label in range(10)], numpy.uint8)


def records(seed, count=COUNT):
    """Returns (labels, images [n,3,32,32]) that a small network can learn: each of the four classes has its own colour."""
    random = numpy.random.default_rng(seed)
    labels = numpy.arange(count) % 4
    noise = random.integers(0, 30, (count, 3, 32, 32), numpy.uint8)
    return labels.astype(numpy.uint8), COLOURS[labels][:, :, None, None] - numpy.minimum(noise, 39)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root") / "cifar10"
    folder.mkdir()
    for seed, name in enumerate(BATCHES):
        labels, images = records(seed)
        (folder / name).write_bytes(b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, images)))
    return folder


def config(cifar, **others):
    data = {"dataset": "cifar10", "root": str(cifar.parent), "limit_train": None, "limit_test": None}
    return {"epochs": 12, "batch_size": 8, "learning_rate": 0.005, "data": data | others}


@pytest.fixture(scope="module")
def trained(cifar, tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"), config(cifar))


def test_a_run_learns_the_batches_and_evaluate_agrees_with_it(tmp_path, cifar, trained):
    summary = trained.summary()
    assert summary["samples_seen"] == 12 * 5 * COUNT
    assert summary["test_accuracy"] > 0.9
    evaluated = printed_json("evaluate", "--checkpoint", trained.checkpoints()[-1], "--nproc-per-node", 1)
    assert evaluated["test_accuracy"] == summary["test_accuracy"]
    pair = train(tmp_path, config(cifar) | {"max_steps": 1}, processes=2)
    assert pair.summary()["data_hash"] == summary["data_hash"]
    as_format = train(tmp_path, config(cifar, dataset=None, root=None, format="cifar", train=str(cifar),
                                       test=str(cifar / "test_batch.bin"), normalize={
                                           "mean": [0.4914, 0.4822, 0.4465], "std": [0.247, 0.2435, 0.2616]}), output="format")
    assert as_format.digest() == trained.digest()


def test_predict_prints_class_names(tmp_path, cifar, trained):
    labels, images = records(seed=5)
    files = [write_png(tmp_path / f"{number}.png", image.transpose(1, 2, 0)) for number, image in enumerate(images)]
    for arguments in (["--checkpoint", trained.checkpoints()[-1]],
                      ["--checkpoint", trained.path / "model.pt", "--config", write_config(tmp_path, config(cifar))]):
        rows = printed_rows("predict", *arguments, *files)
        assert numpy.mean([row["guess"] == label for row, label in zip(rows, labels)]) > 0.9
        assert all(row["class"] == NAMES[row["guess"]] for row in rows)
