"""In OpenCV and OpenVINO, ONNX files of networks with batch norm give the probabilities of `predict` for any batch size."""

import numpy
import pytest
from pictures import write_class_folders
from python_tools import NEEDED, has_module, run_python
from support import import_file, import_torch, own_data, printed_rows, run, train

torch = import_torch()

from torch_networks import with_statistics  # noqa: E402  (needs torch)

pytestmark = [NEEDED, pytest.mark.skipif(not (has_module("cv2") and has_module("openvino")),
                                         reason="OpenCV or OpenVINO is not available for this Python")]

CLASSIFY = """
import sys, cv2, numpy, openvino
output, path = sys.argv[1:3]
images = numpy.load(sys.argv[3])
core = openvino.Core()
compiled = core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
found = {}
for batch in (5, 1):
    found[f"openvino-{batch}"] = numpy.concatenate([compiled(part)[0] for part in numpy.split(images, len(images) // batch)])
net = cv2.dnn.readNetFromONNX(path)
for batch in (5, 1):
    parts = []
    for part in numpy.split(images, len(images) // batch):
        net.setInput(part)
        parts.append(net.forward().copy())
    found[f"opencv-{batch}"] = numpy.concatenate(parts)
numpy.savez(output, **found)
"""
LAYERS = ["batch_norm", {"name": "conv2d", "out_channels": 8, "kernel_size": 3, "stride": 2}, "batch_norm", "silu", "batch_norm",
          {"name": "gate", "layers": ["adaptive_avg_pool2d", {"name": "conv2d", "out_channels": 8, "kernel_size": 1}, "hardsigmoid"]},
          {"name": "residual", "layers": [{"name": "zero_pad2d", "padding": 1}, {"name": "conv2d", "out_channels": 8, "kernel_size": 3},
                                          "batch_norm"], "activation": "relu6"}, "hardswish",
          {"name": "max_pool2d", "kernel_size": 2}, "flatten", {"name": "linear", "out_features": 16}, "batch_norm", "leaky_relu",
          {"name": "linear", "out_features": "classes"}]
NETWORKS = {name: {"name": name} for name in ("resnet18", "torchvision-resnet18", "torchvision-resnet34", "torchvision-resnet50",
                                              "torchvision-mobilenet_v2", "efficientnet-lite0")} | {"layers": {"layers": LAYERS}}


def softmax(logits):
    powers = numpy.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def weights_of(run_folder, folder):
    """Writes weights whose predictions differ between images, unlike those of a single training step."""
    run("export", "--checkpoint", run_folder, "--format", "python", "--output", folder / "net.py", expect=0)
    make_model = import_file(folder / "net.py").make_model
    torch.save(with_statistics(make_model, (3, 64, 64)).state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


@pytest.mark.parametrize("name", NETWORKS)
def test_other_runtimes_match_the_probabilities_of_predict(tmp_path, name):
    images = numpy.random.default_rng(1).integers(0, 256, (10, 64, 64, 3), numpy.uint8)
    files = write_class_folders(tmp_path / "photos", {f"class-{label}": images[2 * label:2 * label + 2] for label in range(5)})
    folder = train(tmp_path, {"data": own_data("image-folder", tmp_path / "photos", size=64, channels=3), "batch_size": 5,
                              "max_steps": 1, "model": NETWORKS[name]})
    weights = weights_of(folder.path, tmp_path)
    config = ["--config", folder.path / "config.json"]
    scores = numpy.array([row["scores"] for row in printed_rows("predict", "--checkpoint", weights, *config, *files)])
    assert scores.std(axis=0).max() > 1e-3  # otherwise the test is vacuous
    planes = images.transpose(0, 3, 1, 2)
    for kind in ("bytes", "float32"):
        run("export", "--checkpoint", weights, *config, "--format", "onnx", "--input", kind, "--output", tmp_path / "net.onnx", expect=0)
        normalize = folder.read_json("config.json")["data"]["normalize"] or {"mean": 0, "std": 1}
        mean, std = (numpy.array(normalize[key]).reshape(-1, 1, 1) for key in ("mean", "std"))
        given = planes if kind == "bytes" else ((planes / 255 - mean) / std).astype(numpy.float32)
        numpy.save(tmp_path / "images.npy", given)
        run_python("-c", CLASSIFY, tmp_path / "found.npz", tmp_path / "net.onnx", tmp_path / "images.npy")
        for runtime, found in numpy.load(tmp_path / "found.npz").items():
            found = found if kind == "bytes" else softmax(found)
            assert abs(found - scores).max() <= 1e-3, (runtime, kind)
            assert (found.argmax(axis=1) == scores.argmax(axis=1)).all(), (runtime, kind)
