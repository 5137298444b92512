"""In other programs, exports classify image files with the same pixels, classes and probabilities as `predict`."""

import json
import sys

import numpy
import pytest
from exports import export, exported_module, exported_session, onnx, session_of
from fit_test import picture
from PIL import Image
from pictures import write_class_folders, write_png
from pixels_test import CORPUS, DEEP_GRAY, read_pictures
from support import block_with, import_torch, own_data, printed_rows, run, run_program, swept, train

torch = import_torch()

from torch_networks import with_statistics  # noqa: E402  (needs torch)

CLASSES = ["it's b\\c", "Ångström \"A\""]
NETWORK = ["batch_norm",  # not preceded by a convolution
           {"name": "conv2d", "out_channels": 8, "kernel_size": 3, "stride": 2, "bias": False}, "batch_norm", "relu6",
           {"name": "sequential", "layers": [{"name": "conv2d", "out_channels": 8, "kernel_size": 3, "groups": 4}]},
           {"name": "dropout", "p": 0.1}, {"name": "batch_norm", "eps": 1e-3}, "batch_norm", "hardswish", "flatten",
           {"name": "linear", "out_features": 12}, "batch_norm", "relu", "batch_norm", {"name": "linear", "out_features": "classes"}]
MIDDLE = [{"name": "resize", "size": [26, 22]}, {"name": "random_crop", "size": [22, 24], "padding": 2, "fill": 90}]
DATA = {  # name: data section of the config, input size of the network
    "stretch": ({"background": [250, 200, 20]}, [20, 24]),
    "crop": ({"fit": "crop", "size": 24, "normalize": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}}, [24, 24]),
    "pad": ({"fit": "pad", "background": [250, 200, 20]}, [20, 24]),
    "gray": ({"fit": "pad", "channels": 1, "background": [250, 200, 20], "normalize": {"mean": 0.4, "std": 0.3}}, [20, 24]),
    "augmented": ({"fit": "crop", "augment": ["horizontal_flip", *MIDDLE, {"name": "color_jitter", "hue": 0.1}]}, [22, 24]),
    "normalised": ({"augment": [{"name": "normalize", "mean": 0.3}, {"name": "random_resized_crop", "size": 18},
                                {"name": "random_resized_crop", "size": 22}, {"name": "random_erasing"}]}, [22, 22]),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Writes one folder per class with images of various shapes and formats: rotated, transparent, grayscale, 16-bit."""
    root = tmp_path_factory.mktemp("photos")
    for label, name in enumerate(CLASSES):
        (root / name).mkdir()
        for number in range(14):
            image = picture(label, 100 * label + number)
            exif = Image.Exif()
            exif[0x0112] = 1 + number % 8
            kind, options = [("png", {}), ("webp", {"lossless": True}), ("bmp", {}), ("ppm", {})][number % 4]
            if kind in ("bmp", "ppm"):
                image = image.convert("RGB")
            image.save(root / name / f"{number}.{kind}", **options, exif=exif)
        image.convert("L").save(root / name / "gray.png")
        deep = numpy.full((30, 20), 9000 + 30000 * label, numpy.uint16)
        Image.fromarray(deep).save(root / name / "deep.png")
        deep[:15] = 1234
        Image.fromarray(deep).save(root / name / "clear.png", transparency=1234)
    return root


def train_on(photos, folder, **data):
    return train(folder, {"epochs": 3, "batch_size": 8, "optimizer": "adam", "sgd_momentum": 0, "model": {"layers": NETWORK},
                          "data": own_data("image-folder", photos, size=[20, 24], channels=3) | {"test": 0.4} | data})


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    """Returns a function from a name in DATA to its run, which is trained on first use."""
    runs = {}

    def run_of(name):
        if name not in runs:
            runs[name] = train_on(photos, tmp_path_factory.mktemp(name), **DATA[name][0])
        return runs[name]
    return run_of


def predicted(source, files, *flags):
    """Returns ([files, classes] probabilities, predicted class names)."""
    rows = printed_rows("predict", "--checkpoint", source, *files, *flags)
    return numpy.array([row["scores"] for row in rows]), [row.get("class") for row in rows]


def check_metadata(path, name, outputs, element):
    """Asserts that the ONNX file of a run describes how to preprocess images."""
    settings, size = DATA[name]
    model = onnx.load(path)
    about = {entry.key: entry.value for entry in model.metadata_props}
    channels = settings.get("channels", 3)
    normalize = settings.get("normalize", {"mean": 0.3 if name == "normalised" else 0, "std": 1})
    expected = {"size": size, "channels": channels, "background": settings.get("background", [255, 255, 255]),
                "classes": CLASSES, **{key: value if isinstance(value, list) else channels * [value] for key, value in normalize.items()}}
    if "augment" in settings:
        expected["fit_size"] = [20, 24]
    assert about.pop("fit") == settings.get("fit", "stretch")
    assert {key: json.loads(value) for key, value in about.items()} == expected
    kinds = [(value.name, value.type.tensor_type.elem_type, [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim])
             for value in (*model.graph.input, *model.graph.output)]
    assert kinds == [("images", element, ["N", channels, *size]), (outputs, onnx.TensorProto.FLOAT, ["N", 2])]


@pytest.mark.parametrize("name", swept(list(DATA), ["crop", "gray", "augmented"]))
def test_exports_match_the_probabilities_of_predict_and_describe_the_preprocessing(tmp_path, photos, trained, name):
    folder, (settings, size) = trained(name), DATA[name]
    files = sorted(photos.glob("*/*"))
    probabilities, _ = predicted(folder.path, files)
    assert probabilities.std(axis=0).max() > 0.02  # otherwise wrong pixels could go unnoticed
    module = exported_module(folder.path, tmp_path / "net.py")
    assert module.CLASSES == CLASSES
    model = module.make_model()
    model.load_state_dict(torch.load(folder.path / "model.pt", weights_only=True), strict=True)
    images = torch.cat([module.preprocess(file) for file in files])
    assert list(images.shape[1:]) == [settings.get("channels", 3), *size]
    with torch.no_grad():
        theirs = model.eval()(images).double().softmax(1).numpy()
    assert abs(predicted(folder.path / "model.pt", files)[0] - theirs).max() <= 1e-5
    # The module's docstring refers to the weights that `predict` uses.
    assert 'torch.load("weights.pt"' in module.__doc__ and "--format pt --output weights.pt" in module.__doc__
    export(folder.path, "pt", tmp_path / "weights.pt")
    best = module.make_model()
    best.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), strict=True)
    with torch.no_grad():
        assert abs(probabilities - best.eval()(images).double().softmax(1).numpy()).max() <= 1e-5
    (logits,) = exported_session(folder.path / "model.pt", tmp_path / "net.onnx").run(["logits"], {"images": images.numpy()})
    assert abs(torch.from_numpy(logits).softmax(1).numpy() - theirs).max() <= 1e-5
    check_metadata(tmp_path / "net.onnx", name, "logits", onnx.TensorProto.FLOAT)
    session = exported_session(folder.path / "model.pt", tmp_path / "bytes.onnx", "--input", "bytes")
    check_metadata(tmp_path / "bytes.onnx", name, "probabilities", onnx.TensorProto.UINT8)
    about = session.get_modelmeta().custom_metadata_map
    mean, std = (torch.tensor(json.loads(about[key])).view(-1, 1, 1) for key in ("mean", "std"))
    pixels = ((images * std + mean) * 255).numpy()
    if name != "normalised":  # which resizes normalised images, so pixels are not integers
        assert abs(pixels - pixels.round()).max() <= 1e-3
        for batch in (1, 5, len(files)):
            (found,) = session.run(["probabilities"], {"images": pixels[:batch].round().astype(numpy.uint8)})
            assert abs(found - theirs[:batch]).max() <= 1e-5


def test_given_sizes_override_those_of_the_checkpoint(photos, trained):
    files, size = sorted(photos.glob("*/*")), ["--set", "data.size=[30,36]"]
    folder = trained("augmented")  # an entry resizes to the network's size
    larger, _ = predicted(folder.checkpoints()[-1], files, *size)
    assert (larger == predicted(folder.path / "model.pt", files, *size)[0]).all()
    assert (larger != predicted(folder.checkpoints()[-1], files)[0]).any()
    run("predict", "--checkpoint", trained("crop").path, *files, *size, expect=5)


def test_an_onnx_file_has_no_batch_norm(tmp_path, trained):
    export(trained("crop").path, "onnx", tmp_path / "net.onnx", "--input", "bytes")
    graph = onnx.load(tmp_path / "net.onnx").graph
    operators = [node.op_type for node in graph.node]
    assert operators == ["Cast", "Mul", "Add", "Mul", "Add", "Conv", "Clip", "Conv", "HardSwish", "Flatten", "Gemm", "Relu",
                         "Mul", "Add", "Gemm", "Softmax"]


@pytest.mark.parametrize("fit, channels", [("stretch", 3), ("crop", 1), ("pad", 3)])
def test_preprocess_gives_the_same_pixels_as_the_program(tmp_path, fit, channels):
    """For JPEGs, Pillow's and the program's decoders differ by up to two levels."""
    names = [name for name in [*CORPUS, *DEEP_GRAY] if not name.endswith(".pbm")]
    pictures = tmp_path / "data" / "class"
    pictures.mkdir(parents=True)
    for name in names:
        (tmp_path / name).write_bytes((CORPUS | DEEP_GRAY)[name])
    for number, (height, width) in enumerate([(500, 333), (2, 900), (611, 3), (40, 60), (4000, 300)]):
        noise = numpy.random.default_rng(number).integers(0, 256, (height, width, 3), numpy.uint8)
        names.append(write_png(tmp_path / f"noise-{number}.png", noise).name)
    ground = (250, 200, 20)
    write_png(pictures / "a.png", noise)
    data = own_data("image-folder", tmp_path / "data", size=[40, 30], fit=fit, channels=channels, background=list(ground))
    folder = train(tmp_path, {"data": data, "model": {"layers": NETWORK}, "max_steps": 1, "batch_size": 1})
    module = exported_module(folder.path, tmp_path / "net.py")
    wanted = read_pictures([(tmp_path / name, fit, 40, 30, channels, ground) for name in names])
    for name, planes in zip(names, wanted, strict=True):
        if isinstance(planes, str):
            continue  # the program refuses this image
        ours = (module.preprocess(tmp_path / name)[0] * 255).round().numpy()
        assert abs(ours - planes).max() <= (2 if name.endswith((".jpg", ".jpeg")) else 0), name


def test_exporting_weights_without_a_config_warns_and_uses_numbers_as_class_names(tmp_path, photos, trained):
    run_folder = trained("crop").path
    weights = tmp_path / "model.pt"
    weights.write_bytes((run_folder / "model.pt").read_bytes())
    config = run_folder / "config.json"
    said = export(weights, "onnx", tmp_path / "net.onnx", "--config", config).stderr
    assert "the class names are unknown" in said and str(weights) in said
    about = session_of(tmp_path / "net.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["0", "1"]
    assert exported_module(weights, tmp_path / "net.py", "--config", config).CLASSES == ["0", "1"]
    for source in (run_folder, run_folder / "model.pt", run_folder / "checkpoints" / "best.safetensors"):
        assert "unknown" not in export(source, "onnx", tmp_path / "net.onnx").stderr


def test_only_onnx_accepts_bytes_as_input(tmp_path, trained):
    for form in ("pt", "safetensors", "python"):
        said = export(trained("crop").path, form, tmp_path / "net", "--input", "bytes", expect=2).stderr
        assert "--input bytes requires --format onnx" in said
    said = export(trained("crop").path, "onnx", tmp_path / "net.onnx", "--input", "int8", expect=2).stderr
    assert "--input" in said and "bytes" in said
    assert not list(tmp_path.iterdir())


def test_the_documented_script_prints_the_predicted_class(tmp_path, photos, trained):
    script = block_with("onnxruntime.InferenceSession", "python", "src/cli/README.md")
    assert sum(line != "" for line in script.splitlines()) <= 13
    (tmp_path / "classify.py").write_text(script + "numpy.save('images.npy', images)\n")
    export(trained("crop").path, "onnx", tmp_path / "net.onnx", "--input", "bytes")
    files = sorted(photos.glob("*/*.webp"))
    _, guesses = predicted(trained("crop").path, files)
    assert len(set(guesses)) == 2
    for guess, file in zip(guesses, files, strict=True):
        assert run_program(sys.executable, "classify.py", file, cwd=tmp_path).stdout == guess + "\n"
        (tmp_path / "copy.webp").write_bytes(file.read_bytes())
        (pixels,) = read_pictures([(tmp_path / "copy.webp", "crop", 24, 24, 3, (255, 255, 255))])
        assert abs(numpy.load(tmp_path / "images.npy")[0].astype(int) - pixels).max() <= 1, file


BUILT_IN = ["torchvision-resnet18", "torchvision-resnet34", "torchvision-resnet50", "torchvision-mobilenet_v2",
            "efficientnet-lite0", "resnet18"]


@pytest.mark.parametrize("name", swept(BUILT_IN, ["torchvision-mobilenet_v2", "resnet18"]))
def test_built_in_networks_are_exported_with_batch_norm_folded(tmp_path, name):
    """Uses running statistics like those of trained networks, and batches of different sizes."""
    write_class_folders(tmp_path / "photos", {label: [numpy.zeros((45, 50, 3), numpy.uint8)] for label in "abc"})
    folder = train(tmp_path, {"data": own_data("image-folder", tmp_path / "photos", size=[45, 50], channels=3),
                              "model": {"name": name}, "max_steps": 1, "batch_size": 3})
    module = exported_module(folder.path, tmp_path / "net.py")
    model = with_statistics(module.make_model, (3, 45, 50))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    session = exported_session(tmp_path / "weights.pt", tmp_path / "net.onnx", "--input", "bytes", "--config", folder.path / "config.json")
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    about = session.get_modelmeta().custom_metadata_map
    mean, std = (torch.tensor(json.loads(about[key])).view(-1, 1, 1) for key in ("mean", "std"))
    images = torch.randint(0, 256, (5, 3, 45, 50), dtype=torch.uint8)
    with torch.no_grad():
        expected = model((images / 255 - mean) / std).softmax(1).numpy()
    assert expected.std(axis=0).max() > 1e-2  # otherwise the test is vacuous
    for batch in (1, 5):
        (found,) = session.run(["probabilities"], {"images": images[:batch].numpy()})
        assert abs(found - expected[:batch]).max() <= 1e-4
