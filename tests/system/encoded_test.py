"""Tests image folders and LMDBs as training data, and preview."""

import shutil
import struct

import numpy
import pytest
from pictures import read_preview, write_class_folders
from support import idx_bytes, merged, mnist_bytes, own_data, printed_json, relative_difference, run, train, write_config

HALVES = ("train", "test")
COUNT = 300  # training samples; also the number of test samples
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Returns a folder with the first samples of MNIST as IDX, as an LMDB of PNGs and as class folders of PNGs."""
    folder = tmp_path_factory.mktemp("sets")
    (folder / "idx").mkdir()
    for prefix in ("train", "t10k"):
        for kind, array in zip(("images-idx3", "labels-idx1"), mnist_bytes(prefix, COUNT)):
            (folder / "idx" / f"{prefix}-{kind}-ubyte").write_bytes(idx_bytes(array))
    for target in ("lmdb", "image-folder"):
        run("convert", "--from", f"idx:{folder / 'idx'}", "--to", f"{target}:{folder / target}", "--encoding", "png", expect=0)
    return folder


def data(sets, name, **others):
    folder = sets / name
    train_set, test_set = (folder if name == "idx" else folder / half for half in HALVES)
    return {"data": own_data(name, train_set, test_set) | others}


def preview(folder, config, *arguments):
    """Returns for each process the preview records of its images, with their pixels."""
    return read_preview(write_config(folder, config), folder / "grid.png", *arguments)


@pytest.mark.sweep
def test_a_preview_of_many_large_images_reaches_rank_0(tmp_path):
    data = {"dataset": None, "format": "synthetic", "size": 244, "channels": 3, "limit_train": 128, "limit_test": 1}
    config = write_config(tmp_path, {"batch_size": 128, "data": data})
    page = tmp_path / "grid.png"
    shown = printed_json("preview", "--config", config, "--output", page, "--nproc-per-node", 2)
    assert [len(process["images"]) for process in shown["processes"]] == [64, 64]
    width, height = struct.unpack(">II", page.read_bytes()[16:24])
    assert width * height > 128 * 244 * 244 and page.stat().st_size > 1e6


def test_an_lmdb_trains_bit_identically_to_idx_on_one_and_two_processes(tmp_path, sets):
    plain = train(tmp_path, merged({"epochs": 1}, data(sets, "idx")), output="idx")
    folder = train(tmp_path, merged({"epochs": 1}, data(sets, "lmdb")), output="lmdb")
    assert folder.digest() == plain.digest()
    assert folder.summary()["data_hash"] == plain.summary()["data_hash"]
    pair = train(tmp_path, merged({"epochs": 1}, data(sets, "lmdb")), processes=2, output="pair")
    assert relative_difference(pair.weights(), plain.weights()) < TOLERANCE


def test_preview_shows_the_first_batch_of_each_process(tmp_path, sets):
    images, labels = mnist_bytes("train", COUNT)
    for processes, counts in ((1, [7]), (3, [3, 2, 2])):
        shown = preview(tmp_path, merged({"batch_size": 7}, data(sets, "lmdb")), "--nproc-per-node", processes)
        assert [len(process) for process in shown] == counts
        for image in sum(shown, []):
            assert image["label"] == labels[image["sample"]]
            assert (image["pixels"][..., 0] == images[image["sample"]]).all()


def test_each_process_reads_its_own_folder(tmp_path, sets):
    threes, sevens = (sets / "image-folder" / "train" / name for name in "37")
    config = data(sets, "image-folder", train=None, train_per_process=[str(sevens), str(threes)], size=24, channels=3)
    config["data"]["test"] = str(tmp_path / "test")
    for name in "37":
        shutil.copytree(sets / "image-folder" / "test" / name, tmp_path / "test" / name)
    shown = preview(tmp_path, merged({"batch_size": 10}, config))
    assert [[image["class"] for image in process] for process in shown] == [["7"] * 5, ["3"] * 5]
    assert shown[0][0]["pixels"].shape == (24, 24, 3)
    folder = train(tmp_path, merged({"epochs": 2, "batch_size": 10}, config), processes=2)
    count = sum(len(list(path.iterdir())) for path in (threes, sevens))
    assert folder.summary()["samples_seen"] == 2 * count
    assert printed_json("evaluate", "--checkpoint", folder.path)["samples"] == len(list((tmp_path / "test").glob("*/*")))
    result = run("--config", write_config(tmp_path, config), "--nproc-per-node", 3, "--output", tmp_path / "three", expect=2)
    assert "/data/train_per_process: lists 2 training sets for 3 processes; " in result.stderr
    assert not (tmp_path / "three").exists()


def test_a_folder_with_one_class_causes_a_warning(tmp_path):
    write_class_folders(tmp_path / "set", {"cats": [numpy.full((28, 28), number, numpy.uint8) for number in range(20)]})
    stderr = train(tmp_path, {"max_steps": 1, "data": own_data("image-folder", tmp_path / "set")}).stderr
    assert "the training set has only one class (cats), so there is nothing to learn" in stderr, stderr
