"""For image folders of 100,000 files and more, `init` and the first steps take seconds, and memory per file is small."""

import json
import os
import time

import numpy
import pytest
from pictures import write_png
from support import own_data, run, start

pytestmark = pytest.mark.sweep

CLASSES = 100
INODES = 20  # each with many hard links, which are listed as separate files


def make_folder(folder, files):
    """Creates class folders with `files` images in total."""
    pixels = numpy.random.default_rng(1).integers(0, 256, (INODES, 12, 12), numpy.uint8)
    pictures = [write_png(folder.parent / f"{folder.name}-{i}.png", image) for i, image in enumerate(pixels)]
    for label in range(CLASSES):
        of_class = folder / f"class-{label:03}"
        of_class.mkdir(parents=True)
        for i in range(label, files, CLASSES):
            os.link(pictures[i % INODES], of_class / f"picture-of-this-class-{i:07}.png")
    return folder


def start_and_measure(folder, data):
    """Returns the seconds from launch to the first steps, and the memory of all processes in bytes, with shared pages counted once,
    without pages of files, whose share depends on the programs that run beside this one.

    All buffers exist after a few steps. Epochs are long enough that no evaluation adds its own."""
    changes = {"data": data, "epochs": 1000, "batch_size": 16, "model": {"name": "mlp"}, "checkpoint": {"every_epochs": 0}}
    begin = time.monotonic()
    with start(folder, changes, processes=2, output="run-" + data["train"].rsplit("-", 1)[1]) as process:
        process.wait_for_step(20)
        seconds = time.monotonic() - begin
        proportional = 0
        for pid in (process.pid, *process.ranks().values()):
            with open(f"/proc/{pid}/smaps_rollup") as rollup:
                proportional += sum(int(line.split()[1]) for line in rollup if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
        process.popen.kill()
    return seconds, 1024 * proportional


def test_a_run_on_200000_files_starts_quickly_with_little_memory(tmp_path):
    few, many = 25_000, 200_000
    measured = {}
    for files in (few, many):
        folder = make_folder(tmp_path / f"set-{files}", files)
        data = own_data("image-folder", folder, make_folder(tmp_path / f"test-{files}", 200), decode="stream", size=12, channels=1)
        measured[files] = start_and_measure(tmp_path, data)
    assert measured[many][0] < 10, measured
    assert (measured[many][1] - measured[few][1]) / (many - few) < 300, measured


def test_init_examines_100000_files_within_seconds(tmp_path):
    folder = make_folder(tmp_path / "many", 100_000)
    begin = time.monotonic()
    config = json.loads(run("init", folder, expect=0).stdout)
    assert time.monotonic() - begin < 10
    assert config["data"]["test"] == 0.1 and config["data"]["size"] == 12
