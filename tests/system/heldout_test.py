"""Compares held-out sets, image lists and the files that a run records with a Python implementation of the hold-out rule."""

import collections
import csv
import ctypes
import hashlib
import json
import math
import re
import shutil
import struct

import numpy
import pytest

from pictures import write_class_folders
from support import mnist_bytes, own_data, printed_json, printed_rows, run, stop_by_sigterm, train, write_config, write_idx_folder

COUNTS = {"ant": 23, "bee": 12, "cat": 7, "yak": 1}
SIZE = 8
SMALL_NET = {"model": {"layers": ["flatten", {"name": "linear", "out_features": "classes"}]}, "batch_size": 16}


def half_up(number):
    return math.floor(number + 0.5)


def drawn(classes, fraction, seed=0):
    """Returns the held-out names of each class according to the rule."""
    held_out = set()
    for names in classes.values():
        ordered = sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
        if len(ordered) >= 2:
            held_out |= set(ordered[:min(max(1, half_up(len(ordered) * fraction)), len(ordered) - 1)])
    return held_out


def without(classes, names):
    return {label: [name for name in own if name not in names] for label, own in classes.items()}


@pytest.fixture
def photos(tmp_path):
    """Returns a folder of class folders, one of them nested; each class has a distinct brightness."""
    random = numpy.random.default_rng(3)
    write_class_folders(tmp_path / "photos", {
        label: random.integers(60 * number, 60 * number + 40, (count, SIZE, SIZE)).astype(numpy.uint8)
        for number, (label, count) in enumerate(COUNTS.items())})
    (tmp_path / "photos" / "bee" / "more").mkdir()
    for i in (3, 5, 9):
        (tmp_path / "photos" / "bee" / f"{i}.png").rename(tmp_path / "photos" / "bee" / "more" / f"{i}.png")
    return tmp_path / "photos"


def classes_of(folder):
    classes = collections.defaultdict(list)
    for file in sorted(folder.rglob("*.png")):
        classes[file.relative_to(folder).parts[0]].append(str(file.relative_to(folder)))
    return classes


def described(folder, config):
    done = run("describe", "--data", "--config", write_config(folder, config), expect=0)
    return json.loads(done.stdout), done.stderr


def own(form, train_set, **data):
    result = own_data(form, train_set, **data)
    result["test"] = data.get("test", 0.2)
    return result


@pytest.mark.parametrize("seed", [0, 7])
def test_held_out_files_follow_the_rule(tmp_path, photos, seed):
    config = SMALL_NET | {"data": own("image-folder", photos, validation=0.15, holdout_seed=seed), "seed": 9}
    record, stderr = described(tmp_path, config)
    classes = classes_of(photos)
    test = drawn(classes, 0.2, seed)
    validation = drawn(without(classes, test), 0.15, seed)
    assert set(record["test"]) == test and set(record["validation"]) == validation
    assert record["classes"] == [
        {"name": label, "train": len(set(names) - test - validation), "validation": len(validation & set(names)),
         "test": len(test & set(names))} for label, names in classes.items()]
    assert record["left_out"] == {}
    assert "1 class with a single sample is not in this set: yak" in stderr


def test_the_rule_also_applies_to_samples_without_paths(tmp_path):
    images, labels = mnist_bytes("t10k", 300)
    write_idx_folder(tmp_path / "digits", images, labels)
    classes = collections.defaultdict(list)
    for i, label in enumerate(labels):
        classes[int(label)].append(i)
    test = drawn(classes, 0.3)
    config = SMALL_NET | {"epochs": 1, "data": own("idx", tmp_path / "digits", test=0.3),
                          "report": {"predictions": {"images_per_batch": 300}}}
    record, _ = described(tmp_path, config)
    assert [row["test"] for row in record["classes"]] == [len(test & set(classes[c])) for c in range(10)]
    folder = train(tmp_path, config)
    assert [row["truth"] for row in folder.rows("predictions.jsonl")] == [int(labels[i]) for i in sorted(test)]


def test_one_folder_gives_the_same_weights_with_any_number_of_processes_and_evaluate_agrees(tmp_path, photos):
    for junk in ("__MACOSX/ant/1.png", "ant/@eaDir/1.png", "notes/readme.txt", "bee/list.txt", "bee/x.tif"):
        (photos / junk).parent.mkdir(parents=True, exist_ok=True)
        (photos / junk).write_bytes(b"x")
    config = SMALL_NET | {"deterministic": {"shards": 3}, "data": own("image-folder", photos, validation=0.15)}
    runs = [train(tmp_path, config, processes=count, output=f"run{count}") for count in (1, 2, 3)]
    assert len({run_.digest() for run_ in runs}) == 1
    folder = runs[1].path
    left_out = {".tif": 1, ".txt": 1, "folders": {
        "@eaDir": "created by another program", "__MACOSX": "created by another program", "notes": "no pictures, 1 .txt file"}}
    record = runs[1].read_json("dataset.json")
    assert record["left_out"] == left_out
    said = ("left out: 1 .tif file (convert it in its folder: mogrify -format png *.tif); 1 .txt file; "
            "3 folders: @eaDir (created by another program)")
    assert said in runs[1].stderr
    assert record == described(tmp_path, config)[0]
    predictions = runs[1].rows("predictions.jsonl")
    assert [row["file"] for row in predictions] == record["test"]
    assert all(row["file"] == record["test"][row["id"]] for row in runs[1].rows("mistakes.jsonl"))

    result = printed_json("evaluate", "--checkpoint", folder / "model.pt")
    assert result["test_accuracy"] == pytest.approx(runs[1].read_json("accuracies.json")[-1])
    assert result["samples"] == len(record["test"])
    # New files and classes change nothing.
    for i in range(40):
        shutil.copy(photos / "cat" / "0.png", photos / "cat" / f"new{i}.png")
    shutil.copytree(photos / "bee", photos / "aaa")
    again = run("evaluate", "--checkpoint", folder / "model.pt", expect=0)
    assert json.loads(again.stdout) == result
    assert "ignored 52 files added since the run began" in again.stderr
    # `predict` gives the same classes and scores, for `--test` and for the same files as arguments.
    shown = printed_rows("predict", "--checkpoint", folder / "model.pt", "--test")
    assert [row["file"] for row in shown] == [str(photos / name) for name in record["test"]]
    assert [row["class"] for row in shown] == [row["guess_name"] for row in predictions]
    single = printed_rows("predict", "--checkpoint", folder / "model.pt", *(row["file"] for row in shown))
    assert [row["guess"] for row in single] == [row["guess"] for row in shown]
    for row, stored in zip(shown + single, 2 * predictions, strict=True):
        assert row["scores"] == pytest.approx([stored[f"score_{label}"] for label in range(len(COUNTS))], abs=1e-4)
    photos.rename(tmp_path / "moved")
    gone = run("evaluate", "--checkpoint", folder, expect=3).stderr
    assert f"{photos}: no such file or folder (data.train of the run, which contains the test set); if it has moved, pass " in gone
    assert printed_json("evaluate", "--checkpoint", folder, "--set", f"data.train={tmp_path}/moved") == result
    (tmp_path / "moved").rename(photos)
    (photos / record["test"][0]).unlink()
    for command in ("evaluate", "predict"):
        gone = run(command, "--checkpoint", folder / "model.pt", *["--test"] * (command == "predict"), expect=3)
        assert f"1 of the run's {len(record['test'])} test files is missing; the first is {record['test'][0]}" in gone.stderr


def test_a_run_is_not_tested_on_another_fraction_than_the_one_held_out(tmp_path, photos):
    folder = train(tmp_path, SMALL_NET | {"epochs": 1, "data": own("image-folder", photos, holdout_seed=3)}).path
    for file in ("model.pt", "checkpoints/best.safetensors"):
        for command in (("evaluate",), ("predict", "--test")):
            for key, given, recorded in (("test", "0.5", "0.2"), ("holdout_seed", "5", "3")):
                refused = run(*command, "--checkpoint", folder / file, "--set", f"data.{key}={given}", expect=2).stderr
                assert f"/data/{key}: is {given}, but was {recorded} in the run" in refused and "dataset.json" in refused
    tested = [printed_json("evaluate", "--checkpoint", folder, "--set", f"data.{change}")["samples"]
              for change in ("test=0.2", "holdout_seed=3", "limit_test=2", f"test={photos}")]
    held_out = len(json.loads((folder / "dataset.json").read_text())["test"])
    assert tested == [held_out, held_out, 2, sum(COUNTS.values())]


def test_a_stopped_run_resumes_bit_identically_but_not_with_different_files(tmp_path, photos):
    config = SMALL_NET | {"epochs": 40, "data": own("image-folder", photos, validation=0.15, decode="stream")}
    whole = train(tmp_path, config, output="whole")
    stop_by_sigterm(tmp_path, config, 1, 20)
    resumed = train(tmp_path, config, "--resume", "auto")
    assert resumed.digest() == whole.digest()
    (photos / "ant" / "0.png").unlink()
    refused = run("--config", write_config(tmp_path, config | {"epochs": 50}), "--output", tmp_path / "run", "--resume", "auto", expect=5)
    assert "the files differ" in refused.stderr


def test_identical_files_cause_a_warning(tmp_path, photos):
    test = described(tmp_path, SMALL_NET | {"data": own("image-folder", photos)})[0]["test"]
    for i in range(10):  # most copies are in the training set
        (photos / "bee" / f"copy{i}.png").write_bytes((photos / test[0]).read_bytes())
    config = SMALL_NET | {"data": own("image-folder", photos)}
    said = f"identical files are in two sets, so results look better than they are: {photos / test[0]} (test) = {photos}/bee/copy"
    for stderr in (described(tmp_path, config)[1], run("init", photos, expect=0).stderr, train(tmp_path, config).stderr):
        assert stderr.count(said) == 1, stderr


def list_config(photos, rows, **others):
    """Writes a list with the columns path, label and holdout, and returns a config that reads it."""
    (photos / "list.csv").write_text("\n".join(["path,label,holdout", *map(",".join, rows)]) + "\n")
    return SMALL_NET | {"data": own("image-list", photos / "list.csv", **others)}


def test_files_in_validation_and_test_cause_a_warning_unless_they_are_unusable(tmp_path, photos):
    (photos / "yak").rename(tmp_path / "yak")
    rows = [(name, label, ("test", "validation", "train")[min(i, 2)])
            for label, names in classes_of(photos).items() for i, name in enumerate(names)]
    test, validation = (photos / name for name, _, _ in rows[:2])
    validation.write_bytes(test.read_bytes())
    config = list_config(photos, rows, test=None, on_bad_sample="skip")
    assert f"{test} (test) = {validation} (validation)" in described(tmp_path, config)[1]
    for file in (test, validation):
        file.write_bytes(b"junk")
    said = described(tmp_path, config)[1]
    assert "identical" not in said and f"{test}: byte 0: not a PNG" in said


def test_a_class_of_a_list_needs_training_rows(tmp_path, photos):
    (photos / "yak").rename(tmp_path / "yak")
    rows = [(name, label, "train" if i else "test") for label, names in classes_of(photos).items() for i, name in enumerate(names)]
    untested = [row for row in rows if row[1:] != ("bee", "test")]
    assert "list.csv: has no test rows of class bee" in described(tmp_path, list_config(photos, untested, test=None))[1]
    untrained = [row for row in rows if row[1:] != ("bee", "train")]
    refused = run("--config", write_config(tmp_path, list_config(photos, untrained, test=None)), expect=3).stderr
    assert "list.csv: has test rows, but no training rows, of class bee" in refused


def test_a_run_finds_its_test_files_in_all_spellings(tmp_path, photos):
    rows = [(name, label, "train") for label, names in classes_of(photos).items() for name in names]
    folder = train(tmp_path, list_config(photos, rows)).path
    expected = run("evaluate", "--checkpoint", folder, expect=0).stdout
    for prefix in (f"{photos}/", f"../{photos.name}/"):
        list_config(photos, [(prefix + name, *others) for name, *others in rows])
        assert run("evaluate", "--checkpoint", folder, expect=0).stdout == expected
    test = json.loads((folder / "dataset.json").read_text())["test"][0]
    list_config(photos, [(name, "wasp" if name == test else label, part) for name, label, part in rows])
    refused = run("evaluate", "--checkpoint", folder, expect=3).stderr
    assert f"{photos / test} has a class that the network was not trained on" in refused


def test_a_list_trains_like_the_folder(tmp_path, photos):
    rows = [(name, label) for label, names in classes_of(photos).items() for name in names]
    with open(photos / "list.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows, rows[3]])
    folder, listed = (train(tmp_path, SMALL_NET | {"data": own(form, place)}, output=form) for form, place in
                      (("image-folder", photos), ("image-list", photos / "list.csv")))
    assert folder.digest() == listed.digest()
    records = [run_.read_json("dataset.json") for run_ in (folder, listed)]
    assert records[0]["test"] == records[1]["test"] and records[1]["left_out"] == {"duplicates": 1}
    assert "1 repeated list row" in listed.stderr
    assert run("evaluate", "--checkpoint", listed.path, expect=0).stdout == run("evaluate", "--checkpoint", folder.path, expect=0).stdout


def test_a_column_of_a_list_assigns_rows_to_sets(tmp_path, photos):
    rows = [(name, label) for label, names in classes_of(photos).items() for name in names]
    parts = ["test" if i % 5 == 0 else "validation" if i % 5 == 1 else "train" for i in range(len(rows))]
    lines = ["path,label,holdout", *(f"{name},{label},{part}" for (name, label), part in zip(rows, parts))]
    (photos / "list.csv").write_text("\n".join(lines) + "\n")
    config = SMALL_NET | {"data": own("image-list", photos / "list.csv", test=None)}
    folder = train(tmp_path, config)
    record = folder.read_json("dataset.json")
    for part in ("train", "validation", "test"):
        assert sum(row[part] for row in record["classes"]) == parts.count(part)
    assert folder.summary()["best_validation_accuracy"] is not None
    assert record["test"] == []  # not drawn by a fraction
    refused = run("--config", write_config(tmp_path, config), "--set", "data.test=0.2", "--output", tmp_path / "other", expect=2)
    assert "/data/test: " in refused.stderr and 'has rows with holdout "test"' in refused.stderr


def test_a_folder_name_can_look_like_a_fraction(tmp_path, photos):
    """settings/config_rules_test.cpp tests invalid fractions."""
    config = SMALL_NET | {"data": own("image-folder", photos) | {"test": "./0.2"}}
    refused = run("--config", write_config(tmp_path, config), "--output", tmp_path / "run", expect=3)
    assert "/0.2: no such file or folder (data.test)" in refused.stderr, refused.stderr


class Xxh128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def sealed(content):
    """Returns the bytes of a checkpoint with a recomputed checksum at the end."""
    library = ctypes.CDLL("libxxhash.so.0")  # apt depends on this library
    library.XXH3_128bits.restype = Xxh128
    digest = library.XXH3_128bits(content, ctypes.c_size_t(len(content)))
    return content + struct.pack(">QQ", digest.high, digest.low)


def test_a_run_whose_validation_set_follows_the_old_rule_is_not_resumed(tmp_path, photos):
    config = SMALL_NET | {"epochs": 1, "data": own("image-folder", photos, test=str(photos), validation=0.2)}
    folder = train(tmp_path, config, "--set", "data.holdout_seed=5")
    path = folder.checkpoints()[-1]
    content = path.read_bytes()[:-16]
    key = re.search(rb'\\+"holdout_seed\\+": ?5,', content)[0]
    old = tmp_path / "old.safetensors"
    old.write_bytes(sealed(content.replace(key, b" " * len(key))))
    refused = run("--config", write_config(tmp_path, config | {"epochs": 2}), "--output", tmp_path / "new", "--resume", old, expect=5)
    assert "was trained on different data" in refused.stderr


def test_evaluation_works_if_skipping_unusable_images_leaves_fewer_than_the_limit(photos, tmp_path):
    data = own("image-folder", photos, test=0.3, on_bad_sample="skip", limit_test=8)
    whole = train(tmp_path, {**SMALL_NET, "data": data, "epochs": 1}, output="whole")
    (photos / whole.read_json("dataset.json")["test"][0]).write_bytes(b"none")
    run_folder = train(tmp_path, {**SMALL_NET, "data": data, "epochs": 1}, output="short")
    record = run_folder.read_json("dataset.json")
    assert len(record["test"]) == 7
    assert printed_json("describe", "--data", "--config", run_folder.path / "config.json") == record
    found = printed_json("evaluate", "--checkpoint", run_folder.path, "--json")
    assert found["test_accuracy"] == pytest.approx(run_folder.summary()["test_accuracy"], abs=1e-6)
