"""Tests the real NVIDIA DALI as the decoder of a run and as a reader of the output of `convert`."""

import io
import json
import shutil

import numpy
import pytest
from pictures import read_preview
from support import REPOSITORY, SMALL_MNIST, merged, mnist_bytes, own_data, relative_difference, run, small_mnist, train, write_config

dali = pytest.importorskip("nvidia.dali", reason="scripts/test --integrations installs DALI")
Image = pytest.importorskip("PIL.Image")
lmdb = pytest.importorskip("lmdb")

COUNT = 900
ACCURACIES = (0.674, 0.784, 0.824, 0.8455, 0.860)


def test_the_build_has_the_dali_module():
    assert "DALI 2." in run("--version").stdout


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Returns a folder with the first samples of MNIST as an LMDB of JPEGs, an LMDB of PNGs, and class folders of PNGs."""
    folder = tmp_path_factory.mktemp("sets")
    for name, target, encoding in (("jpeg", "lmdb", "jpeg"), ("png", "lmdb", "png"), ("folder", "image-folder", "png")):
        run("convert", "--from", f"idx:{small_mnist().name}/mnist", "--to", f"{target}:{folder / name}", "--encoding", encoding, expect=0)
    return folder


def read_by_dali(reader, **arguments):
    """Returns all images and labels of a DALI reader, in the reader's order."""
    batch = 500

    @dali.pipeline_def(batch_size=batch, num_threads=2, device_id=None)
    def pipeline():
        encoded, labels = getattr(dali.fn.readers, reader)(name="reader", **arguments)
        return dali.fn.decoders.image(encoded, output_type=dali.types.GRAY), labels

    pipe = pipeline()
    pipe.build()
    images, labels = [], []
    for _ in range(0, pipe.epoch_size("reader"), batch):
        one, other = pipe.run()
        images.append(one.as_array()[..., 0])
        labels.append(other.as_array()[:, 0])
    return numpy.concatenate(images), numpy.concatenate(labels)


@pytest.mark.parametrize("encoding, most", (("png", 0), ("jpeg", 8)))
def test_dalis_caffe2_reader_reads_lmdbs_written_by_convert(sets, encoding, most):
    images, labels = read_by_dali("caffe2", path=str(sets / encoding / "test"))
    wanted, classes = mnist_bytes("t10k", SMALL_MNIST["test"])
    assert (labels == classes).all()
    differences = numpy.abs(images.astype(int) - wanted)
    assert differences.mean() <= most / 8 and numpy.quantile(differences, 0.999) <= most


def field(number, value):
    """Encodes a protobuf field with an integer or bytes."""
    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def caffe2_record(image, label):
    """Returns TensorProtos of an encoded image and a label: dims, data_type (STRING 4, INT32 2), values."""
    tensors = (field(1, 1) + field(2, 4) + field(6, image), field(1, 1) + field(2, 2) + field(4, label))
    return b"".join(field(1, tensor) for tensor in tensors)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Returns a folder with LMDBs of all of MNIST as JPEGs, written with Python's lmdb and Pillow."""
    folder = tmp_path_factory.mktemp("foreign")
    for half in ("train", "test"):
        with lmdb.open(str(folder / half), map_size=1 << 30) as environment, environment.begin(write=True) as table:
            for number, (image, label) in enumerate(zip(*mnist_bytes({"train": "train", "test": "t10k"}[half]))):
                file = io.BytesIO()
                Image.fromarray(image).save(file, "JPEG", quality=95)
                table.put(b"%08d" % number, caffe2_record(file.getvalue(), int(label)))
    return folder


@pytest.mark.parametrize("decode", ("dali", "once"))
def test_dali_mlp_json_reaches_the_original_accuracy_on_a_foreign_lmdb(tmp_path, foreign, decode):
    flags = [f"data.{half}={foreign / half}" for half in ("train", "test")] + [f"data.decode={decode}", "device=cpu"]
    run("--config", REPOSITORY / "configs" / "dali_mlp.json", "--output", tmp_path / "run", "--nproc-per-node", 2,
        *(part for flag in flags for part in ("--set", flag)), timeout=500, expect=0)
    accuracies = json.loads((tmp_path / "run" / "accuracies.json").read_text())
    assert accuracies == pytest.approx(ACCURACIES, abs=0.02)


def config_of(sets, name, **changes):
    halves = {half: str(sets / name / half) for half in ("train", "test")}
    data = {"dataset": None, "format": "image-folder" if name == "folder" else "lmdb", "limit_train": COUNT,
            "limit_test": 150, "validation": 0.1, "augment": ["horizontal_flip", {"name": "mixup", "alpha": 0.4}]}
    return {"epochs": 2, "batch_size": 64, "data": data | halves | changes}


@pytest.mark.parametrize("name", ("png", "folder"))
def test_lossless_formats_train_bit_identically_with_either_decoder(tmp_path, sets, name):
    ours = train(tmp_path, config_of(sets, name, decode="stream"), processes=2, output="ours")
    dalis = train(tmp_path, config_of(sets, name, decode="dali", decode_threads=2), processes=2, output="dalis")
    assert dalis.digest() == ours.digest()
    assert "nvjpeg" not in dalis.stderr.lower() and "error" not in dalis.stderr.lower()


def test_a_run_resumes_within_an_epoch_with_any_number_of_processes(tmp_path, sets):
    config = config_of(sets, "jpeg", decode="dali")
    whole = train(tmp_path, config, processes=2, output="whole")
    seen = 2 * sum(row["train"] for row in whole.read_json("dataset.json")["classes"])
    for processes in (2, 3):
        output = f"on-{processes}"
        train(tmp_path, merged(config, {"max_steps": 5}), processes=2, output=output)
        on = train(tmp_path, merged(config, {"max_steps": None}), "--resume", "auto", processes=processes, output=output)
        assert on.summary()["samples_seen"] == whole.summary()["samples_seen"] == seen
        assert processes != 2 or on.digest() == whole.digest()
        assert relative_difference(on.weights(), whole.weights()) < 1e-5
    moving = merged(config, {"deterministic": False, "data": {"split": "throughput", "augment": []}})
    assert train(tmp_path, moving, processes=3, output="moved").summary()["samples_seen"] == seen


def picture(height, width, phase):
    y, x = numpy.mgrid[:height, :width].astype(float)
    planes = [numpy.sin(x / (7 + i) + phase) * numpy.cos(y / (9 - i)) for i in range(3)]
    return Image.fromarray((numpy.stack(planes, -1) * 110 + 128).astype(numpy.uint8))


@pytest.mark.parametrize("size, channels", ((None, 3), ([48, 40], 1), ([150, 170], 3)))
def test_photographs_look_alike_with_either_decoder(tmp_path, size, channels):
    for number in range(6):
        folder = tmp_path / "set" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        height, width = (96, 120) if size is None else (70 + 13 * number, 150 - 11 * number)
        picture(height, width, number).save(folder / f"{number}.jpg", quality=85, subsampling=2)
        picture(height, width, -number).save(folder / f"{number}.png")
    shown = []
    for decode in ("stream", "dali"):
        data = own_data("image-folder", tmp_path / "set", size=size, channels=channels, decode=decode)
        config = write_config(tmp_path, {"batch_size": 12, "data": data})
        shown.append(sum(read_preview(config, tmp_path / f"{decode}.png", "--nproc-per-node", 2), []))
    for ours, dalis in zip(*shown, strict=True):
        difference = numpy.abs(ours["pixels"].astype(int) - dalis["pixels"])
        assert difference.max() <= 4 and difference.mean() < 1


DAMAGE = {
    "cut.png": (lambda file: file.write_bytes(file.read_bytes()[:-40]), "corrupt PNG image"),
    "cut.jpg": (lambda file: file.write_bytes(file.read_bytes()[:-400]), "corrupt JPEG image"),
    "huge.png": (lambda file: file.write_bytes(file.read_bytes()[:16] + (100_000).to_bytes(4, "big") * 2 +
                                               file.read_bytes()[24:]), "an image of 100000 x 100000 pixels"),
    "other.png": (lambda file: picture(70, 90, 1).save(file), "is 70 x 90 pixels, but the first image is 60 x 80"),
    "gray.jpg": (lambda file: picture(60, 80, 1).convert("L").save(file), "is grayscale while others are RGB"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_unusable_image_is_reported_or_skipped(tmp_path, name):
    damage, message = DAMAGE[name]
    for half in ("train", "test"):
        for number in range(40):
            folder = tmp_path / half / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            picture(60, 80, number).save(folder / f"{100 + number}.{('png', 'jpg')[number % 4 // 2]}")
    bad = tmp_path / "train" / "b" / name
    shutil.copy(tmp_path / "train" / "b" / {"png": "101.png", "jpg": "103.jpg"}[name[-3:]], bad)
    damage(bad)
    data = own_data("image-folder", tmp_path / "train", tmp_path / "test", decode="dali")
    config = write_config(tmp_path, {"epochs": 1, "batch_size": 8, "model": {"name": "mlp", "hidden": [8]}, "data": data})
    result = run("--config", config, "--output", tmp_path / "run", "--nproc-per-node", 2, expect=3)
    assert f"{bad}: " in result.stderr and message in result.stderr
    skipped = run("--config", config, "--output", tmp_path / "skip", "--nproc-per-node", 2, "--set", "data.on_bad_sample=skip", expect=0)
    assert "skipped 1 unusable image (data.on_bad_sample: skip)\n" in skipped.stderr and f"skipped: {bad}: " in skipped.stderr
    assert json.loads((tmp_path / "skip" / "summary.json").read_text())["samples_seen"] == 40
