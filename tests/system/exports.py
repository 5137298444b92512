"""Loads exports of the program in PyTorch and onnxruntime."""

import pytest
from support import import_file, import_torch, run

import_torch()
onnx = pytest.importorskip("onnx", reason="onnx is not installed; scripts/test installs it")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; scripts/test installs it")


def export(source, form, output, *flags, expect=0):
    return run("export", "--checkpoint", source, "--format", form, "--output", output, *flags, expect=expect)


def exported_module(source, path, *flags):
    """Runs `export --format python` and imports the module."""
    export(source, "python", path, *flags)
    return import_file(path)


def session_of(path):
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def exported_session(source, path, *flags):
    export(source, "onnx", path, *flags)
    return session_of(path)
