"""Tests large numbers of classes, metrics per class, and the choice of the best checkpoint."""

import shutil

import numpy
import pytest
from pictures import write_class_folders, write_png
from support import RunFolder, mnist_bytes, own_data, printed_json, printed_rows, relative_difference, run, swept, train, write_config

SIDE = 8
TOLERANCE = 1e-5
NETWORK = {"layers": ["flatten", {"name": "linear", "out_features": 64}, "relu", {"name": "linear", "out_features": "classes"}]}


def write_classes(folder, classes, counts, seed, strays=False):
    """Writes class folders with noisy copies of one image per class; class i gets `counts[i % len(counts)]` copies.

    With `strays`, the first image of every third class shows the next class."""
    means = numpy.random.default_rng(0).integers(40, 216, (classes, SIDE, SIDE))
    random = numpy.random.default_rng(seed)
    for label in range(classes):
        place = folder / f"class-{label:05}"
        place.mkdir(parents=True)
        for number in range(counts[label % len(counts)]):
            shown = (label + (strays and number == 0 and label % 3 == 0)) % classes
            noise = random.integers(-40, 40, (SIDE, SIDE))
            write_png(place / f"{number}.png", (means[shown] + noise).astype(numpy.uint8))
    return folder


def pictures(folder, classes, train_counts=(3,), test_counts=(1, 3)):
    return own_data("image-folder", write_classes(folder / "train", classes, train_counts, 1),
                    write_classes(folder / "test", classes, test_counts, 2, strays=True))


def many_classes(data, **others):
    return {"epochs": 5, "batch_size": 100, "optimizer": "adam", "sgd_momentum": 0, "learning_rate": 0.01, "model": NETWORK,
            "report": {"predictions": {"batches": 1, "images_per_batch": 20}}, "data": data, **others}


def metrics_of(truth, scores):
    """Computes metrics of labels [n] and scores [n, classes] with numpy: overall metrics, and counts, precision, recall and F1 per class."""
    classes = scores.shape[1]
    guess = scores.argmax(axis=1)
    samples, predicted = (numpy.bincount(labels, minlength=classes) for labels in (truth, guess))
    correct = numpy.bincount(truth[truth == guess], minlength=classes)
    recall = correct / numpy.maximum(samples, 1)
    top5 = (numpy.argsort(-scores, axis=1)[:, :5] == truth[:, None]).any(axis=1)
    metrics = {"accuracy": (truth == guess).mean(), "balanced_accuracy": recall[samples > 0].mean(), "top5_accuracy": top5.mean()}
    return metrics, {"samples": samples, "precision": correct / numpy.maximum(predicted, 1), "recall": recall,
                     "f1": 2 * correct / numpy.maximum(samples + predicted, 1), "predicted": predicted, "correct": correct}


@pytest.mark.parametrize("classes", swept([7, 1100], [1100]))
def test_metrics_match_numpy_for_any_number_of_classes(tmp_path, classes):
    data = pictures(tmp_path / "data", classes)
    folder = train(tmp_path, many_classes(data), processes=2)
    checkpoint = folder.path / "checkpoints" / "best.safetensors"
    evaluated = printed_json("evaluate", "--checkpoint", checkpoint)
    files = sorted((tmp_path / "data" / "test").glob("*/*.png"))
    rows = printed_rows("predict", "--checkpoint", checkpoint, *files)
    truth = numpy.array([int(row["file"].split("class-")[1][:5]) for row in rows])
    metrics, per_class = metrics_of(truth, numpy.array([row["scores"] for row in rows]))
    assert evaluated["samples"] == len(files)
    for key, value in metrics.items():
        assert evaluated[f"test_{key}"] == pytest.approx(value), key
    assert 1 / classes < metrics["accuracy"] < 1  # otherwise the test is vacuous
    assert [row["name"] for row in evaluated["classes"]] == [f"class-{label:05}" for label in range(classes)]
    for key in ("samples", "precision", "recall", "f1"):
        assert [row[key] for row in evaluated["classes"]] == pytest.approx(list(per_class[key])), key
    epochs = folder.epochs()
    best = max(epochs, key=lambda epoch: epoch["test_accuracy"])
    assert all(best[f"test_{key}"] == pytest.approx(value) for key, value in metrics.items())
    assert ("confusion" in best) == (classes <= 1024) != ("class_counts" in best)
    if "confusion" in best:
        assert numpy.array(best["confusion"]).shape == (classes, classes)
        assert list(numpy.diag(best["confusion"])) == list(per_class["correct"])
    else:
        assert best["class_counts"] == {key: list(per_class[key]) for key in ("samples", "predicted", "correct")}
        assert (folder.path / "metrics.jsonl").stat().st_size < 40 * classes * len(epochs)
    check_predictions(folder, rows, best is epochs[-1])
    assert "What does it get wrong?" in (folder.path / "report.html").read_text()


def check_predictions(folder, rows, are_of_best):
    lines = folder.rows("predictions.jsonl")
    assert len(lines) == min(20, len(rows))
    for line in lines:
        if len(rows[0]["scores"]) <= 100:
            assert "top" not in line and f"score_{len(rows[0]['scores']) - 1}" in line
            continue
        assert "score_0" not in line and len(line["top"]) == 5
        assert line["top"][0]["class"] == line["guess"] and line["top"][0]["name"] == line["guess_name"]
        if are_of_best:
            scores = numpy.array(rows[line["id"]]["scores"])
            assert [entry["class"] for entry in line["top"]] == list(numpy.argsort(-scores)[:5])
            assert [entry["score"] for entry in line["top"]] == pytest.approx(sorted(scores)[:-6:-1], rel=1e-4)


def test_every_command_supports_300_classes(tmp_path):
    data = pictures(tmp_path / "data", 300, test_counts=(1,))
    data["augment"] = [{"name": "mixup", "alpha": 0.4}]
    folder = train(tmp_path, many_classes(data, epochs=1, label_smoothing=0.1, precision="auto"), processes=2)
    config = folder.path / "config.json"
    shown = printed_json("preview", "--config", config, "--output", tmp_path / "grid.png")
    labels = [image["label"] for process in shown["processes"] for image in process["images"]]
    assert max(labels) > 255 and len(labels) == 100
    assert "300 classes" in folder.stderr
    described = printed_json("describe", "--config", config, "--json")
    assert described["modules"][-1]["output"] == ["N", 300]
    for form, name in (("pt", "out.pt"), ("onnx", "out.onnx"), ("python", "out.py")):
        run("export", "--checkpoint", folder.path, "--format", form, "--output", tmp_path / name, expect=0)
    run("report", folder.path, folder.path, "--output", tmp_path / "both.html", expect=0)
    picture = next((tmp_path / "data" / "test").glob("class-00299/*.png"))
    (row,) = printed_rows("predict", "--checkpoint", folder.path, picture)
    assert row["class"] == f"class-{row['guess']:05}" and len(row["scores"]) == 300


def test_results_for_300_classes_match_with_two_processes_that_stream(tmp_path):
    data = pictures(tmp_path / "data", 300)
    expected = train(tmp_path, many_classes(data), output="one")
    accuracies = [epoch["test_balanced_accuracy"] for epoch in expected.epochs()]
    assert accuracies[-1] > 0.1
    folder = train(tmp_path, many_classes({**data, "decode": "stream"}), processes=2, output="two")
    assert relative_difference(folder.weights(), expected.weights()) < TOLERANCE
    assert [epoch["test_balanced_accuracy"] for epoch in folder.epochs()] == pytest.approx(accuracies, abs=0.01)


@pytest.mark.sweep
def test_too_many_classes_are_refused(tmp_path):
    one = write_png(tmp_path / "one.png", numpy.zeros((4, 4), numpy.uint8))
    for label in range(65537):
        (tmp_path / "train" / str(label)).mkdir(parents=True)
        (tmp_path / "train" / str(label) / "a.png").symlink_to(one)
    data = own_data("image-folder", tmp_path / "train", tmp_path / "train")
    result = run("--config", write_config(tmp_path, {"data": data, "model": NETWORK}), "--output", tmp_path / "run")
    assert result.returncode == 3
    assert "has 65537 classes; at most 65536 classes are supported" in result.stderr


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    """Returns the data section for a set of MNIST digits with many zeros and few other digits."""
    folder = tmp_path_factory.mktemp("unequal")
    for part, prefix, many, few in (("train", "train", 300, 15), ("test", "t10k", 200, 12)):
        images, labels = mnist_bytes(prefix)
        write_class_folders(folder / part, {str(digit): images[labels == digit][:few if digit else many] for digit in range(10)})
    return own_data("image-folder", folder / "train", folder / "test")


SIGNS = {"accuracy": 1, "balanced_accuracy": 1, "loss": -1}
UNSTEADY = {"learning_rate": 0.05, "batch_size": 16, "model": NETWORK, "log_interval": 100}


@pytest.mark.parametrize("validation", swept([0, 0.3], [0]))
def test_best_by_selects_the_best_checkpoint(tmp_path, unequal, validation):
    prefix = "validation" if validation else "test"
    chosen = {}
    for best_by, sign in SIGNS.items():
        changes = UNSTEADY | {"epochs": 12, "checkpoint": {"best_by": best_by}, "data": {**unequal, "validation": validation}}
        config = write_config(tmp_path, changes)
        done = run("--config", config, "--output", tmp_path / best_by, expect=0)
        folder = RunFolder(tmp_path / best_by)
        epochs = folder.epochs()
        best = max(epochs, key=lambda epoch: sign * epoch[f"{prefix}_{best_by}"])
        chosen[best_by] = best["epoch"]
        evaluated = printed_json("evaluate", "--checkpoint", folder.path / "checkpoints" / "best.safetensors")
        assert evaluated["test_loss"] == pytest.approx(best["test_loss"]) and evaluated["test_accuracy"] == best["test_accuracy"]
        assert evaluated["test_balanced_accuracy"] == pytest.approx(best["test_balanced_accuracy"])
        summary = folder.summary()
        assert (summary["best_epoch"], summary["best_test_accuracy"]) == (best["epoch"], best["test_accuracy"])
        if validation:
            assert summary["best_validation_accuracy"] == best["validation_accuracy"]
        assert f"{100 * best['test_accuracy']:.2f} % in epoch {best['epoch']}" in done.stdout
        assert f"epoch {best['epoch']}" in (folder.path / "report.html").read_text()
    # Otherwise the test is vacuous; with a small validation set all rules may choose the same epoch.
    assert validation or len(set(chosen.values())) > 1, chosen


def test_a_resumed_run_keeps_the_best_checkpoint_so_far_only_if_the_metric_is_the_same(tmp_path, unequal):
    def changes(epochs, best_by):
        return UNSTEADY | {"epochs": epochs, "checkpoint": {"best_by": best_by}, "data": unequal}

    begun = train(tmp_path, changes(6, "loss"), output="begun")
    for best_by in ("loss", "accuracy"):
        shutil.copytree(begun.path, tmp_path / best_by)
        folder = train(tmp_path, changes(9, best_by), "--resume", "auto", output=best_by)
        epochs = folder.epochs()
        candidates = epochs if best_by == "loss" else epochs[6:]
        best = max(candidates, key=lambda epoch: SIGNS[best_by] * epoch[f"test_{best_by}"])
        assert folder.summary()["best_epoch"] == best["epoch"]


def test_early_stopping_uses_balanced_accuracy_if_best_by_does_and_accuracy_otherwise(tmp_path, unequal):
    for best_by, key in (("balanced_accuracy", "balanced_accuracy"), ("loss", "accuracy")):
        folder = train(tmp_path, UNSTEADY | {"epochs": 40, "data": unequal, "early_stopping": {"patience": 2},
                                             "checkpoint": {"best_by": best_by}}, output=best_by)
        values = [epoch[f"test_{key}"] for epoch in folder.epochs()]
        assert folder.summary()["ended_by"] == "early_stopping"
        assert max(values[:-2]) >= max(values[-2:]) and len(values) < 40
        assert all(max(values[i - 1:i + 1]) > max(values[:i - 1]) for i in range(2, len(values) - 1))


def test_evaluation_needs_only_the_test_set(tmp_path):
    folder = train(tmp_path, many_classes(pictures(tmp_path / "data", 3), epochs=1)).path
    commands = [(command, "--checkpoint", weights) for command in (("evaluate",), ("predict", "--test"))
                for weights in (folder, folder / "model.pt")]
    expected = [run(*first, *others, expect=0).stdout for first, *others in commands]
    shutil.move(tmp_path / "data" / "train", tmp_path / "moved")
    assert [run(*first, *others, expect=0).stdout for first, *others in commands] == expected
    alone = shutil.copy(folder / "checkpoints" / "best.safetensors", tmp_path)
    assert run("evaluate", "--checkpoint", alone, expect=0).stdout == expected[0]
    weights = shutil.copy(folder / "model.pt", tmp_path)
    refused = run("evaluate", "--checkpoint", weights, "--config", folder / "config.json", expect=3).stderr
    assert "(data.train, which defines the classes: the weights do not name them); if it has moved, pass" in refused
    shutil.rmtree(tmp_path / "data" / "test" / "class-00001")
    assert "no usable test samples of class class-00001" in run("evaluate", "--checkpoint", alone, expect=0).stderr
    for file in (tmp_path / "data" / "test").glob("*/*.png"):
        write_png(file, numpy.zeros((9, 9), numpy.uint8))
    assert "is 9 x 9 pixels, but" in run("evaluate", "--checkpoint", alone, expect=3).stderr


def test_evaluation_numbers_classes_as_the_network_does(tmp_path):
    data = pictures(tmp_path / "data", 3)
    folder = train(tmp_path, many_classes(data, epochs=20))
    test = tmp_path / "data" / "test"
    predicted = [row["class"] for row in printed_rows("predict", "--test", "--checkpoint", folder.path)]
    for split in ("train", "test"):
        (tmp_path / "data" / split / "class-00000").rename(tmp_path / split)
    for checkpoint in (folder.path, folder.path / "model.pt"):
        evaluated = printed_json("evaluate", "--checkpoint", checkpoint)
        expected = [row["name"] for row in evaluated["classes"]]
        assert expected == [f"class-{label:05}" for label in range(3)] and evaluated["classes"][0]["samples"] == 0
        names = [name for name in ("class-00001", "class-00002") for _ in (test / name).glob("*")]
        assert evaluated["test_accuracy"] == pytest.approx(numpy.mean([a == b for a, b in zip(names, predicted[-len(names):])]))
    (test / "class-00001").rename(test / "dog")
    (tmp_path / "data" / "train" / "class-00001").rename(tmp_path / "data" / "train" / "dog")
    refused = run("evaluate", "--checkpoint", folder.path, expect=3).stderr
    assert f"{test}/dog/0.png has a class that the network was not trained on; its classes: class-00000, " in refused
