"""The two commands of README that train on a folder of pictures, run as they are written there."""

import json
import subprocess
from pathlib import Path

import numpy
from pictures import write_png
from readme_code import block_with
from support import BINARY, LONG_S, environment

PICTURES = 10  # of each class


def test_two_commands_train_on_a_folder_of_pictures_and_hold_out_a_fifth(tmp_path):
    random = numpy.random.default_rng(1)
    for label in ("cats", "dogs"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(PICTURES):
            write_png(tmp_path / "photos" / label / f"{number}.png", random.integers(0, 255, (40, 70, 3), numpy.uint8))
    lines = block_with("photos.json", "", "README.md").replace("$ ", "").replace("build/bin/mnist-train", BINARY)
    variables = {"MNIST_TRAIN_SET": json.dumps({"epochs": 1, "device": "cpu", "launch": {"processes_per_node": 1}})}
    done = subprocess.run(["bash", "-e", "-c", lines], cwd=tmp_path, env=environment(**variables), capture_output=True,
                          text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    folder = Path(tmp_path / "runs/photos/latest")
    record = json.loads((folder / "dataset.json").read_text())
    assert [(row["name"], row["train"], row["test"]) for row in record["classes"]] == [("cats", 8, 2), ("dogs", 8, 2)]
    assert json.loads((folder / "summary.json").read_text())["samples_seen"] == 16
