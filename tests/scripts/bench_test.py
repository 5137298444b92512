"""scripts/bench: the Python that mnist-train is compared with, and the tables in README.md and scripts/bench/README.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib" / "bench"))
import table  # noqa: E402


@pytest.mark.parametrize("name", table.TABLES)
def test_the_tables_say_what_the_committed_results_say(name):
    text = (ROOT / name).read_text()
    path = "scripts/bench/results/cpu.json"
    lines = table.TABLES[name](json.loads((ROOT / path).read_text()))
    assert table.replaced(text, name, path, lines) == text, "scripts/bench/table was not run"


@pytest.mark.skipif("MNIST_TRAIN_BINARY" not in os.environ, reason="needs the built program")
def test_both_sides_learn_the_same_in_a_short_benchmark(tmp_path):
    pytest.importorskip("torch")
    output = tmp_path / "result.json"
    command = [sys.executable, ROOT / "scripts" / "bench" / "run", "net", "--runs", "1", "--epochs", "1", "--sides", "fp32,best",
               "--limit", "6400", "--binary", os.environ["MNIST_TRAIN_BINARY"], "--output", output]
    subprocess.run(command, check=True, capture_output=True)
    result = json.loads(output.read_text())
    sides = result["cases"]["net"]["sides"]
    accuracy = {side: figures["test_accuracy"]["median"] for side, figures in sides.items()}
    assert all(0.6 < value < 0.95 for value in accuracy.values()), accuracy
    assert abs(accuracy["fp32"] - accuracy["best"]) < 0.1
    assert 0 < result["cases"]["net"]["floor_epoch_seconds"]["fp32"] < sides["fp32"]["epoch_seconds"]["median"]
    assert output.with_suffix(".svg").read_text().startswith("<svg ")
