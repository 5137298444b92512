"""Tests `predict` on PNG files: inverted, invalid or badly named ones, and many at once."""

import json
import os
import re
import shutil

import numpy
import pytest
from pictures import write_png
from support import json_lines, mnist_bytes, printed_rows, run, run_on_terminal, train

COUNT = 200


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    changes = {"epochs": 3, "sgd_momentum": 0.9, "data": {"limit_train": 5000, "limit_test": COUNT}}
    return train(tmp_path_factory.mktemp("trained"), changes)


@pytest.fixture(scope="module")
def checkpoint(trained):
    return trained.checkpoints()[-1]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Returns (files, labels) of the first test images."""
    folder = tmp_path_factory.mktemp("digits")
    images, labels = mnist_bytes("t10k", COUNT)
    return [write_png(folder / f"{number}.png", image) for number, image in enumerate(images)], labels


def predict(checkpoint, *images, **others):
    return printed_rows("predict", "--checkpoint", checkpoint, *images, **others)


def test_every_file_gets_a_line_with_class_and_scores(trained, checkpoint, digits):
    files, labels = digits
    rows = predict(checkpoint, *files)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    for row in rows:
        assert list(row) == ["file", "guess", "scores"]
        assert len(row["scores"]) == 10
        assert sum(row["scores"]) == pytest.approx(1, abs=1e-5)
        assert row["guess"] == numpy.argmax(row["scores"])
    accuracy = numpy.mean([row["guess"] == label for row, label in zip(rows, labels)])
    assert accuracy == pytest.approx(trained.summary()["test_accuracy"])
    assert accuracy > 0.8


def test_classes_without_names_have_no_names_in_the_run_folder_either(tmp_path, digits):
    data = {"dataset": None, "format": "synthetic", "limit_train": 200, "limit_test": 20}
    folder = train(tmp_path, {"epochs": 1, "data": data})
    for file in (folder.checkpoints()[-1], folder.path / "model.pt"):
        assert [list(row) for row in predict(file, digits[0][0])] == [["file", "guess", "scores"]]


def test_output_is_readable_on_a_terminal_and_json_in_a_pipe(checkpoint, digits):
    files = digits[0][:5]
    rows = predict(checkpoint, *files)
    code, text, _ = run_on_terminal("predict", "--checkpoint", checkpoint, *files)
    assert code == 0
    assert [line.split(" (")[0] for line in text.splitlines()] == [f"{row['file']}: {row['guess']}" for row in rows]
    code, text, _ = run_on_terminal("predict", "--checkpoint", checkpoint, "--json", *files)
    assert json_lines(text) == rows


def test_a_closed_pipe_ends_a_command_quietly(checkpoint, digits):
    for command in (["predict", "--checkpoint", checkpoint, *digits[0]], ["predict", "--checkpoint", checkpoint, "--test"],
                    ["evaluate", "--checkpoint", checkpoint], ["describe", "--config", "mnist"], ["config-schema"]):
        read, write = os.pipe()
        os.close(read)
        assert run(*command, stdout=write, expect=0).stderr == "", command
        os.close(write)


def test_only_images_that_look_inverted_cause_a_warning(tmp_path, checkpoint, digits):
    images, _ = mnist_bytes("t10k", 3)
    assert run("predict", "--checkpoint", checkpoint, *digits[0], expect=0).stderr == ""
    inverted = [write_png(tmp_path / f"inverted-{number}.png", 255 - image) for number, image in enumerate(images)]
    result = run("predict", "--checkpoint", checkpoint, *digits[0][:4], *inverted, expect=0)
    assert len(result.stdout.splitlines()) == 7
    (warning,) = result.stderr.splitlines()
    files = ", ".join(map(str, inverted))
    assert f"3 of 7 images look inverted ({files}): dark on a light background" in warning
    assert warning.endswith(f"ImageMagick: convert {inverted[0]} -background white -alpha remove -negate inverted.png")
    assert str(digits[0][0]) not in warning


def test_a_file_name_with_a_leading_dash_works_after_two_dashes(tmp_path, checkpoint, digits):
    names = ["-cat.png", "--two.png"]
    for name in names:
        shutil.copy(digits[0][0], tmp_path / name)
    assert [row["file"] for row in predict(checkpoint, "--", *names, folder=tmp_path)] == names
    assert [row["file"] for row in predict(checkpoint, digits[0][1], "--", *names, folder=tmp_path)] == [str(digits[0][1]), *names]
    assert [row["file"] for row in predict(checkpoint, "--json", *["./" + name for name in names], folder=tmp_path)]
    for name in names:
        run("predict", "--checkpoint", checkpoint, name, folder=tmp_path, expect=2)


def test_images_get_the_same_preprocessing_as_test_images(tmp_path, digits):
    augment = [{"name": "resize", "size": 20}, {"name": "mixup", "scope": "global"}]
    files, labels = digits
    run_folder = train(tmp_path, {"sgd_momentum": 0.9, "model": {"name": "mlp"}, "data": {
        "limit_train": 5000, "limit_test": COUNT, "augment": augment}}, processes=2)
    rows = predict(run_folder.checkpoints()[-1], *files)
    accuracy = numpy.mean([row["guess"] == label for row, label in zip(rows, labels)])
    assert accuracy == pytest.approx(run_folder.summary()["test_accuracy"]) and accuracy > 0.5
    config = run_folder.path / "config.json"
    assert predict(run_folder.path / "model.pt", "--config", config, *files) == rows
    assert predict(run_folder.path / "model.pt", *files) == rows  # with the config.json beside the weights


def test_invalid_images_are_reported_and_the_others_are_printed(tmp_path, checkpoint, digits):
    good = digits[0][0]
    bad = tmp_path / "bad.jpg"
    bad.write_text("no image")
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(good.read_bytes()[:80])
    result = run("predict", "--checkpoint", checkpoint, bad, good, tmp_path / "none.png", cut, tmp_path, expect=3)
    assert [json.loads(line)["file"] for line in result.stdout.splitlines()] == [str(good)]
    assert "4 of 5 image files" in result.stderr
    for path in (bad, cut, tmp_path / "none.png", tmp_path):
        assert f"{path}: " in result.stderr
    assert f"use its pictures, such as {tmp_path}/*.jpg" in result.stderr


def test_different_names_stay_different_in_json(tmp_path, checkpoint, digits):
    names = [b"\xff.png", b"\xfe.png", rb"\xff.png", "é\\.png".encode()]
    for name in names:
        shutil.copy(digits[0][0], os.fsencode(tmp_path) + b"/" + name)
    shown = [row["file"] for row in predict(checkpoint, *map(os.fsdecode, names), folder=tmp_path)]
    assert shown == [r"\xff.png", r"\xfe.png", r"\x5cxff.png", "é\\.png"]
    assert [re.sub(rb"\\x(..)", lambda escape: bytes.fromhex(escape[1].decode()), name.encode()) for name in shown] == names


def test_a_call_without_images_or_config_is_refused(tmp_path, trained, checkpoint, digits):
    run("predict", "--checkpoint", checkpoint, expect=2)
    alone = shutil.copy(trained.path / "model.pt", tmp_path)
    assert "--config" in run("predict", "--checkpoint", alone, digits[0][0], expect=2).stderr
    run("predict", "--checkpoint", digits[0][0], "--config", trained.path / "config.json", digits[0][0], expect=5)
