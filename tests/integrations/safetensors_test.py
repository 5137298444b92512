"""Exchanges files with the real safetensors library in both directions."""

import json

import numpy
from python_tools import NEEDED, run_python
from support import read_pt, run, train

pytestmark = NEEDED

TO_NUMPY = """
import sys, numpy
from safetensors.numpy import load_file, save_file
tensors = load_file(sys.argv[1])
numpy.savez(sys.argv[2], **tensors)
save_file(tensors, sys.argv[3])
"""


def test_weights_round_trip_through_the_library(tmp_path):
    changes = {"epochs": 1, "model": {"name": "resnet18"}, "batch_size": 8, "data": {"limit_train": 8, "limit_test": 8}}
    folder = train(tmp_path, changes)
    weights, arrays, back = tmp_path / "ours.safetensors", tmp_path / "arrays.npz", tmp_path / "theirs.safetensors"
    run("export", "--checkpoint", folder.path / "model.pt", "--format", "safetensors", "--output", weights, expect=0)
    run_python("-c", TO_NUMPY, weights, arrays, back)
    expected, found = read_pt(folder.path / "model.pt"), numpy.load(arrays)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape and (found[name] == tensor).all(), name
    results = [run("evaluate", "--checkpoint", path, "--config", folder.path / "config.json") for path in (weights, back)]
    assert json.loads(results[0].stdout)["samples"] == 8
    assert results[0].stdout == results[1].stdout
