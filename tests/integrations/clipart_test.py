"""The walk in configs/README.md through Debian's openclipart-png, from its folders to predictions, in fewer epochs."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from readme_code import block_with
from support import BINARY, environment

CLIPART = Path("/usr/share/openclipart/png")
CLASSES = ["animals", "food", "people", "plants", "tools", "transportation"]
TRAIN_FASTER = {"epochs": 8, "device": "cpu"}

pytestmark = pytest.mark.skipif(not CLIPART.is_dir(), reason="scripts/test --integrations installs openclipart-png")


def shell(line, folder, **variables):
    """The standard output of a line that a user types."""
    path = f"{Path(BINARY).parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment(PATH=path, **variables), capture_output=True,
                          text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def class_of(path):
    return next(part for part in Path(path).parts if part in CLASSES)


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """(folder, standard output of each command by its name)."""
    folder = tmp_path_factory.mktemp("walk")
    for line in block_with("openclipart-png", "bash").splitlines():
        if not line.startswith("apt-get"):
            shell(line, folder)
    (folder / "clipart.json").write_text(block_with('"clipart"', "json"))
    outputs = {}
    for line in block_with("clipart.json", "bash").splitlines():
        word = line.split()[1]
        name = {"--config": "train"}.get(word, word) + (" --test" if " --test" in line else "")
        variables = {"MNIST_TRAIN_SET": json.dumps(TRAIN_FASTER)} if name == "train" else {}
        outputs[name] = shell(line, folder, **variables)
    return folder, outputs


def test_the_record_of_the_run_has_six_classes_and_a_fifth_of_each_held_out(walk):
    folder, outputs = walk
    record = json.loads((folder / "runs/clipart/dataset.json").read_text())
    assert [row["name"] for row in record["classes"]] == CLASSES
    for row in record["classes"]:
        count = row["train"] + row["validation"] + row["test"]
        files = sum(len(files) for _, _, files in os.walk(CLIPART / row["name"]))
        assert files - 15 <= count <= files  # without those that are too large
        assert abs(row["test"] - 0.2 * count) <= 4 and row["validation"] > 0
        assert row["test"] == sum(class_of(name) == row["name"] for name in record["test"])
    assert not set(record["test"]) & set(record["validation"])
    assert all((folder / "clipart" / name).is_file() for name in record["test"] + record["validation"])
    assert json.loads(outputs["describe"])["test"] == record["test"]
    assert (folder / "batch.png").read_bytes().startswith(b"\x89PNG")


def test_the_network_learned_and_evaluation_agrees_with_single_predictions(walk):
    folder, outputs = walk
    record = json.loads((folder / "runs/clipart/dataset.json").read_text())
    evaluated = json.loads(outputs["evaluate"])
    assert evaluated["samples"] == len(record["test"])
    assert evaluated["test_balanced_accuracy"] > 0.28  # always the same class: 0.17
    rows = [json.loads(line) for line in outputs["predict --test"].splitlines()]
    assert len(rows) == len(record["test"])
    right = {name: [row["class"] == name for row in rows if class_of(row["file"]) == name] for name in CLASSES}
    assert sum(map(sum, right.values())) / len(rows) == pytest.approx(evaluated["test_accuracy"])
    recalls = [sum(own) / len(own) for own in right.values()]
    assert sum(recalls) / len(recalls) == pytest.approx(evaluated["test_balanced_accuracy"])
    cats = [json.loads(line) for line in outputs["predict"].splitlines()]
    assert cats and all(row["class"] in CLASSES for row in cats)
