"""Unpacks Parquet files in the layout of the Hugging Face hub, written by pyarrow, with the recipe in configs/README.md."""

import json

import numpy
from pictures import write_png
from python_tools import NEEDED, run_python
from support import block_with, own_data, train

pytestmark = NEEDED

WRITER = """
import json, sys, pyarrow, pyarrow.parquet
for name, rows in json.loads(sys.argv[1]).items():
    table = {"image": [{"bytes": open(path, "rb").read(), "path": None} for path, _ in rows],
             "label": [label for _, label in rows]}
    pyarrow.parquet.write_table(pyarrow.table(table), name)
"""


def test_the_recipe_unpacks_all_shards_and_a_network_learns_them(tmp_path):
    (tmp_path / "data").mkdir()
    random = numpy.random.default_rng(1)
    shards, colours = {}, [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    for shard in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        rows = shards[f"data/{shard}.parquet"] = []
        for number in range(12):
            pixels = random.integers(0, 100, (8, 8, 3), numpy.uint8) + (numpy.array(colours[number % 3], numpy.uint8) // 2)
            rows.append((str(write_png(tmp_path / f"{shard}-{number}.png", pixels)), number % 3))
    run_python("-c", WRITER, json.dumps(shards), folder=tmp_path)
    run_python("-c", block_with("parquet"), folder=tmp_path)
    written = sorted((tmp_path / "pictures").rglob("*.png"))
    assert len(written) == 36
    first = tmp_path / "pictures/train/00001/train-00001-of-00002-000004.png"
    assert first.read_bytes() == (tmp_path / "train-00001-of-00002-4.png").read_bytes()
    trained = train(tmp_path, {"epochs": 15, "batch_size": 8, "model": {"name": "mlp", "hidden": [16]},
                               "data": own_data("image-folder", "pictures/train", "pictures/test")})
    assert trained.summary()["samples_seen"] == 15 * 24
    assert trained.summary()["test_accuracy"] > 0.9
