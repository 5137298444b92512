"""`mnist-train init` prints a config for an image folder that trains without changes."""

import json
import os
import shutil

import numpy
import pytest
from pictures import write_class_folders
from safetensors_file import write_safetensors
from support import RunFolder, import_torch, run, swept

ONE_EPOCH = ("--set", "epochs=1", "--set", "launch.processes_per_node=1", "--set", "schedule.warmup_epochs=0")


def paint(folder, classes, sides=(20, 90)):
    """Writes images of random sizes; each class has its own colour."""
    draw = numpy.random.default_rng(5)
    for name, count in classes.items():
        colour = draw.integers(0, 200, 3)
        write_class_folders(folder, {name: [(colour + draw.integers(0, 55, (*draw.integers(*sides, 2), 3))).astype(numpy.uint8)
                                            for _ in range(count)]})
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return paint(tmp_path_factory.mktemp("init") / "my photos", {"cats": 60, "dogs": 30, "owls": 25})


def test_the_printed_config_trains_from_any_folder(tmp_path, photos):
    said = run("init", photos.name + "/", folder=photos.parent, expect=0)
    config = json.loads(said.stdout)
    assert config["class_weights"] == "balanced" and config["data"]["test"] == 0.2
    assert {line.split(":")[0].split()[0] for line in said.stderr.splitlines()} >= {"data.test", "data.size", "data.fit", "model"}
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "cfg.json"
    path.write_text(said.stdout)
    run("--config", path, "--dry-run", folder=tmp_path, expect=0)
    run("--config", path, *ONE_EPOCH, "--output", "run", folder=tmp_path, expect=0)
    record = RunFolder(tmp_path / "run").read_json("dataset.json")
    assert [(row["name"], row["train"], row["test"]) for row in record["classes"]] == [("cats", 48, 12), ("dogs", 24, 6), ("owls", 20, 5)]


def test_train_and_test_subfolders_are_used_directly(tmp_path):
    paint(tmp_path / "set" / "train", {"a": 6, "b": 6})
    paint(tmp_path / "set" / "test", {"a": 2, "b": 2})
    printed = run("init", tmp_path / "set", "--quiet", expect=0)
    assert printed.stderr.startswith("identical files are in two sets") and printed.stderr.count("\n") == 1
    path = tmp_path / "cfg.json"
    path.write_text(printed.stdout)
    run("--config", path, *ONE_EPOCH, "--set", "max_steps=1", "--output", tmp_path / "run", expect=0)
    record = json.loads((tmp_path / "run" / "dataset.json").read_text())
    assert [(row["train"], row["test"]) for row in record["classes"]] == [(6, 2), (6, 2)]
    paint(tmp_path / "set" / "val", {"a": 2, "b": 2})
    again = run("init", tmp_path / "set", expect=0)
    assert again.stdout == printed.stdout and "; the pictures in val are not used" in again.stderr


def test_unusable_images_are_skipped(tmp_path):
    photos = paint(tmp_path / "photos", {"a": 8, "b": 8})
    (photos / "a" / "broken.png").write_bytes((photos / "a" / "0.png").read_bytes()[:20])
    said = run("init", photos, expect=0)
    assert json.loads(said.stdout)["data"]["on_bad_sample"] == "skip"
    assert "unusable: 1 of 17 examined, for example" in said.stderr and "a/broken.png" in said.stderr
    for name in range(6):  # identical files that no set contains
        (photos / "a" / f"{name}.png").write_bytes(b"junk")
    (photos / "b" / "0.png").rename(photos / "b" / "IMG_0.HEIC")
    said = run("init", photos, expect=0)
    assert json.loads(said.stdout)["class_weights"] == "balanced" and "9 pictures of 2 classes, from 2 to 7 each" in said.stderr
    assert "identical" not in said.stderr and "*.HEIC)" in said.stderr
    for name in (6, 7):
        (photos / "a" / f"{name}.png").write_bytes(b"junk")
    assert f"{photos}/a: none of its pictures can be used" in run("init", photos, expect=3).stderr
    paint(tmp_path / "sets" / "train", {"a": 8, "b": 8})
    test = paint(tmp_path / "sets" / "test", {"a": 3, "b": 3})
    (test / "a" / "0.png").write_bytes(b"junk")
    said = run("init", tmp_path / "sets", expect=0).stderr
    assert f"unusable: 1 of 22 examined, for example {test}/a/0.png" in said
    for path in test.glob("*/*"):
        path.write_bytes(b"junk")
    assert f"{test}/a/0.png: " in run("init", tmp_path / "sets", expect=3).stderr


def test_classes_and_files_that_are_left_out_are_named_as_in_training(tmp_path):
    photos = paint(tmp_path / "photos", {"a": 8, "b": 8, "c": 1})
    (photos / "c" / "0.png").rename(photos / "c" / "0.TIF")
    (photos / "a" / "more.gif").write_bytes(b"GIF89a")
    said = run("init", photos, expect=0)
    left_out = ("left out: 1 .gif file (convert it in its folder: mogrify -format png *.gif); 1 folder: "
                "c (no pictures, 1 .TIF file (convert it in its folder: mogrify -format png *.TIF)")
    assert left_out in said.stderr
    (tmp_path / "cfg.json").write_text(said.stdout)
    assert left_out in run("--config", tmp_path / "cfg.json", *ONE_EPOCH, "--output", tmp_path / "run", expect=0).stderr


def test_an_unlabelled_test_set_is_not_used(tmp_path):
    paint(tmp_path / "train", {"a": 6, "b": 6})
    paint(tmp_path / "test", {"images": 3})
    said = run("init", tmp_path, expect=3).stderr
    assert (f"{tmp_path}/test: has no class folders like those of {tmp_path}/train (a, b); its folders are images: " in said and
            f" init {tmp_path}/train" in said and "predict" in said), said
    paint(tmp_path / "val", {"a": 2, "b": 2})
    assert json.loads(run("init", tmp_path, expect=0).stdout)["data"]["test"] == str(tmp_path / "val")


def test_a_path_that_is_not_utf8_is_refused_with_the_reason(tmp_path):
    folder = paint(tmp_path / os.fsdecode(b"photos\xff"), {"a": 2, "b": 2})
    assert "photos\\xff: this path is not UTF-8" in run("init", folder, expect=3).stderr
    assert "/output: the path is not UTF-8" in run("--config", "mnist", "--output", folder, "--dry-run", expect=2).stderr


def test_an_unusable_image_that_init_did_not_decode_does_not_end_the_run(tmp_path):
    photos = paint(tmp_path / "photos", {"a": 70, "b": 70})
    broken = photos / "a" / "1.png"  # of 140 images, init decodes only every third
    broken.write_bytes(broken.read_bytes()[:-20])
    proposed = run("init", photos, expect=0)
    assert "1.png" not in proposed.stderr
    (tmp_path / "cfg.json").write_text(proposed.stdout)
    done = run("--config", tmp_path / "cfg.json", *ONE_EPOCH, "--set", "max_steps=1", "--output", tmp_path / "run", expect=0)
    assert f"skipped: {broken}" in done.stderr


def test_a_folder_that_cannot_be_trained_on_is_refused(tmp_path):
    """app/proposed_config_test.cpp tests more such folders."""
    (tmp_path / "photos").write_bytes(b"PK\3\4" + bytes(90))
    said = run("init", tmp_path / "photos", expect=3)
    assert said.stdout == "" and "unpack" in said.stderr, said.stderr


def test_a_folder_is_required():
    assert "FOLDER is required" in run("init", expect=2).stderr
    assert "init: The following argument was not expected: b\n" in run("init", "a", "b", expect=2).stderr


@pytest.mark.parametrize("form", swept(["pt", "safetensors"], ["pt"]))
def test_weights_are_fine_tuned_in_the_matching_network(tmp_path, photos, form):
    torch = import_torch()
    models = pytest.importorskip("torchvision.models")
    weights = models.resnet18(num_classes=7).state_dict()
    path = tmp_path / f"weights.{form}"
    if form == "pt":
        torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in weights.items()}}, path)
    else:
        write_safetensors(path, weights)
    printed = run("init", photos, "--weights", path.name, folder=tmp_path, expect=0).stdout
    config = json.loads(printed)
    assert config["model"] == {"name": "torchvision-resnet18", "weights": {"file": str(path), "new": "head"}}
    assert config["parameters"][-1] == {"match": "head", "learning_rate_factor": 1}
    (tmp_path / "cfg.json").write_text(printed)
    run("--config", "cfg.json", "--dry-run", folder=tmp_path, expect=0)
    briefly = (*ONE_EPOCH, "--set", "data.size=64", "--set", "max_steps=1")
    run("--config", "cfg.json", *briefly, "--output", "run", folder=tmp_path, expect=0)
    again = run("init", photos, "--weights", "run", folder=tmp_path, expect=0)
    assert json.loads(again.stdout)["model"]["weights"]["file"] == str(tmp_path / "run/checkpoints/best.safetensors")
    shutil.copytree(photos, tmp_path / "others")
    (tmp_path / "others" / "cats").rename(tmp_path / "others" / "yaks")
    warned = run("--config", "cfg.json", *briefly, "--set", "data.train=others", "--set", "model.weights=run", "--output", "other",
                 folder=tmp_path, expect=0).stderr
    assert "its last layer was trained for the classes cats, dogs, owls, but the data has dogs, owls, yaks; set model.weights.new" in warned


def test_weights_of_an_unknown_network_are_refused(tmp_path, photos):
    torch = import_torch()
    models = pytest.importorskip("torchvision.models")
    weights = models.resnet18().state_dict()
    del weights["layer4.1.conv2.weight"]
    torch.save(weights, tmp_path / "partial.pt")
    assert "missing: layer4.1.conv2.weight" in run("init", photos, "--weights", tmp_path / "partial.pt", expect=5).stderr
    torch.save({"a.weight": torch.zeros(3, 3), "a.bias": torch.zeros(3)}, tmp_path / "own.pt")
    said = run("init", photos, "--weights", tmp_path / "own.pt", expect=5)
    assert said.stdout == "" and "torchvision-resnet18" in said.stderr, said.stderr
    assert "no-such.pt" in run("init", photos, "--weights", tmp_path / "no-such.pt", expect=5).stderr
