"""The two commands of README that train on a folder of pictures, run as they are written there."""

import json

import numpy
from pictures import write_class_folders
from readme_code import block_with
from support import BINARY, RunFolder, environment, run_program


def test_two_commands_train_on_a_folder_of_pictures_and_hold_out_a_fifth(tmp_path):
    random = numpy.random.default_rng(1)
    write_class_folders(tmp_path / "photos", {label: random.integers(0, 255, (10, 40, 70, 3), numpy.uint8) for label in ("cats", "dogs")})
    lines = block_with("photos.json", "", "README.md").replace("$ ", "").replace("build/bin/mnist-train", BINARY)
    variables = {"MNIST_TRAIN_SET": json.dumps({"epochs": 1, "device": "cpu", "launch": {"processes_per_node": 1}})}
    run_program("bash", "-e", "-c", lines, cwd=tmp_path, env=environment(**variables))
    folder = RunFolder(tmp_path / "runs/photos/latest")
    rows = folder.read_json("dataset.json")["classes"]
    assert [(row["name"], row["train"], row["test"]) for row in rows] == [("cats", 8, 2), ("dogs", 8, 2)]
    assert folder.summary()["samples_seen"] == 16
