"""Runs commands from README and Python code from configs/README.md verbatim."""

import json
import struct
import sys

import numpy
import pytest
from pictures import write_class_folders
from support import BINARY, RunFolder, block_with, environment, own_data, run, run_program, train, write_config

COUNT, SIDE = 48, 6
KINDS = {8: "u1", 12: ">i4"}


def pictures(seed):
    """Returns (images [n,SIDE,SIDE], labels [n]): the label is the index of the bright row."""
    random = numpy.random.default_rng(seed)
    labels = numpy.arange(COUNT) % SIDE
    images = random.integers(0, 100, (COUNT, SIDE, SIDE), numpy.uint8)
    images[numpy.arange(COUNT), labels] = 255
    return images, labels


def write_npz(folder):
    (images, labels), (test_images, test_labels) = pictures(seed=1), pictures(seed=2)
    numpy.savez_compressed(folder / "mnist.npz", x_train=images, y_train=labels, x_test=test_images, y_test=test_labels[:, None])


def write_csv(folder):
    images, labels = pictures(seed=1)
    table = numpy.concatenate([labels[:, None], images.reshape(COUNT, -1)], axis=1)
    header = ",".join(["label", *(f"pixel{i}" for i in range(SIDE * SIDE))])
    numpy.savetxt(folder / "train.csv", table, fmt="%d", delimiter=",", header=header, comments="")


def read_array(path):
    content = path.read_bytes()
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    return numpy.frombuffer(content, KINDS[content[2]], offset=4 + 4 * len(shape)).reshape(shape)


@pytest.mark.parametrize("name, write", [("mnist.npz", write_npz), ("train.csv", write_csv)])
def test_a_recipe_writes_the_same_images_and_a_network_learns_them(tmp_path, name, write):
    write(tmp_path)
    refused = run("--config", write_config(tmp_path, {"data": own_data("idx", name)}), expect=3)
    assert f"{name}: is " in refused.stderr and "configs/README.md" in refused.stderr
    run_program(sys.executable, "-c", block_with(name), cwd=tmp_path)
    images, labels = tmp_path / "digits/train-images-idx3-ubyte", tmp_path / "digits/train-labels-idx1-ubyte"
    for path, expected in zip((images, labels), pictures(seed=1)):
        assert numpy.array_equal(read_array(path), expected)
    test = {} if name == "mnist.npz" else {"test": {"images": str(images), "labels": str(labels)}}
    trained = train(tmp_path, {"epochs": 15, "batch_size": 8, "learning_rate": 0.1, "model": {"name": "mlp", "hidden": [32]},
                               "data": own_data("idx", "digits") | test})
    assert trained.summary()["samples_seen"] == 15 * COUNT
    assert trained.summary()["test_accuracy"] > 0.9


def test_two_commands_train_on_an_image_folder_and_hold_out_a_fifth(tmp_path):
    random = numpy.random.default_rng(1)
    write_class_folders(tmp_path / "photos", {label: random.integers(0, 255, (10, 40, 70, 3), numpy.uint8) for label in ("cats", "dogs")})
    lines = block_with("photos.json", "", "README.md").replace("$ ", "").replace("build/bin/mnist-train", BINARY)
    variables = {"MNIST_TRAIN_SET": json.dumps({"epochs": 1, "device": "cpu", "launch": {"processes_per_node": 1}})}
    run_program("bash", "-e", "-c", lines, cwd=tmp_path, env=environment(**variables))
    folder = RunFolder(tmp_path / "runs/photos/latest")
    rows = folder.read_json("dataset.json")["classes"]
    assert [(row["name"], row["train"], row["test"]) for row in rows] == [("cats", 8, 2), ("dogs", 8, 2)]
    assert folder.summary()["samples_seen"] == 16
