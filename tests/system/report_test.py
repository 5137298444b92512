"""Tests the reports of a run: predictions, time breakdown, lineage, report page."""

import json
import shutil
import signal
from html.parser import HTMLParser

import numpy
import pytest

from pictures import read_data_uri
from support import mnist_bytes, run, run_on_terminal, start, train, wait_until

SHOWN = {
    "epochs": 1, "test_batch_size": 200, "data": {"limit_train": 1280, "limit_test": 450},
    "report": {"predictions": {"batches": 5, "images_per_batch": 20}},
}
IDS = [*range(0, 20), *range(200, 220), *range(400, 420)]


class Page(HTMLParser):
    """Parses a page; asserts that every tag is closed."""

    VOID = {"meta", "img", "link", "br", "input"}

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.text, self.hidden = [], [], [], 0
        self.feed(path.read_text())
        assert self.open == []
        self.words = " ".join("".join(self.text).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns the same run with one and with three processes, by number of processes."""
    folder = tmp_path_factory.mktemp("finished")
    return {count: train(folder, SHOWN, processes=count, output=f"run{count}") for count in (1, 3)}


def test_predictions_cover_the_first_batches_with_any_number_of_processes(finished):
    images, labels = mnist_bytes("t10k")
    rows = {count: folder.rows("predictions.jsonl") for count, folder in finished.items()}
    for of_run in rows.values():
        assert [row["id"] for row in of_run] == IDS
        for row in of_run:
            scores = [row[f"score_{label}"] for label in range(10)]
            assert sum(scores) == pytest.approx(1, abs=1e-5)
            assert row["guess"] == numpy.argmax(scores)
            assert row["truth"] == labels[row["id"]]
            assert set(row) == {"id", "image", "guess", "truth", *(f"score_{label}" for label in range(10))}
    for row in rows[1][:5] + rows[1][-5:]:
        assert (read_data_uri(row["image"])[:, :, 0] == images[row["id"]]).all()
    for one, three in zip(rows[1], rows[3]):
        assert one["image"] == three["image"]
        assert [one[f"score_{i}"] for i in range(10)] == pytest.approx([three[f"score_{i}"] for i in range(10)], rel=1e-2, abs=1e-4)


def test_misclassified_images_come_from_the_whole_test_set_with_any_number_of_processes(finished):
    images, labels = mnist_bytes("t10k")
    for folder in finished.values():
        rows = folder.rows("mistakes.jsonl")
        (epoch,) = folder.epochs()
        confusion = numpy.array(epoch["confusion"])
        assert len(rows) == len({row["id"] for row in rows}) == min(240, confusion.sum() - confusion.trace())
        # Mistakes are not limited to the samples in predictions.jsonl, and every kind of confusion is represented.
        assert not {row["id"] for row in rows} <= set(IDS)
        numpy.fill_diagonal(confusion, 0)
        assert {(row["truth"], row["guess"]) for row in rows} == {tuple(kind) for kind in numpy.argwhere(confusion)}
        stored = {row["id"]: row for row in folder.rows("predictions.jsonl")}
        for row in rows:
            assert row["truth"] == labels[row["id"]] != row["guess"] and 0.1 <= row["confidence"] <= 1
            if row["id"] in stored:
                assert stored[row["id"]]["guess"] == row["guess"]
                assert stored[row["id"]][f"score_{row['guess']}"] == pytest.approx(row["confidence"], abs=1e-6)
        assert (read_data_uri(rows[-1]["image"])[:, :, 0] == images[rows[-1]["id"]]).all()


def test_an_epoch_record_has_a_time_breakdown_and_a_confusion_matrix(finished):
    for count, folder in finished.items():
        (epoch,) = folder.epochs()
        confusion = numpy.array(epoch["confusion"])
        assert confusion.shape == (10, 10)
        assert (confusion.sum(axis=1) == numpy.bincount(mnist_bytes("t10k", 450)[1], minlength=10)).all()
        assert confusion.trace() / 450 == pytest.approx(epoch["test_accuracy"])
        seconds = epoch["seconds"]
        parts = seconds["input"] + seconds["compute"] + seconds["communication"]
        assert 0 < seconds["input"] < parts <= 1.001 * epoch["train_seconds"]
        assert parts > 0.5 * epoch["train_seconds"]
        assert (seconds["communication"] > 0) == (count > 1) or seconds["communication"] < 1e-3
        assert seconds["evaluation"] == pytest.approx(epoch["test_seconds"])


def test_the_page_is_self_contained(finished):
    page = Page(finished[3].path / "report.html")
    accuracy = finished[3].summary()["test_accuracy"]
    assert f"Test accuracy{100 * accuracy:.2f} %" in page.words.replace("</dt>", "")
    for words in ("Did it learn?", "What does it get wrong?", "Where did the time go?", "What exactly was run?",
                  "finished", "3 processes, cpu, fp32", finished[3].summary()["config_hash"]):
        assert words in page.words
    assert len(page.all("img")) == len(finished[3].rows("mistakes.jsonl"))
    for tag, attributes in page.tags:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,"))
    policy = page.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'nonce-")
    assert "http-equiv=\"refresh\"" not in (finished[3].path / "report.html").read_text()


def test_the_report_command_writes_the_same_page_and_compares_runs(finished, tmp_path):
    result = run("report", finished[1].path, "--output", tmp_path / "page.html")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {"output": str(tmp_path / "page.html"), "runs": 1}
    again, own = Page(tmp_path / "page.html"), Page(finished[1].path / "report.html")
    assert again.words.split("Written by")[0] == own.words.split("Written by")[0]
    result = run("report", finished[1].path, finished[3].path, "--output", "-", expect=0)
    (tmp_path / "both.html").write_text(result.stdout)
    both = Page(tmp_path / "both.html")
    assert "2 runs" in both.words and "(ran) world_size13" in both.words.replace(" 1", "1").replace(" 3", "3")


def test_the_report_command_warns_about_folders_without_a_run_and_skips_them(finished, tmp_path):
    nothing, empty = tmp_path / "nothing", tmp_path / "empty"
    nothing.symlink_to("removed")  # like `latest` after its run is deleted
    empty.mkdir()
    folders = [nothing, finished[1].path, empty, finished[3].path]
    code, text, stderr = run_on_terminal("report", *folders, "--output", tmp_path / "page.html")
    assert (code, text) == (0, f"{tmp_path / 'page.html'}: a report of 2 runs\n")
    (warning,) = stderr.splitlines()
    assert str(nothing) in warning and str(empty) in warning and str(finished[1].path) not in warning
    assert "2 runs" in Page(tmp_path / "page.html").words
    (tmp_path / "page.html").unlink()
    result = run("report", nothing, empty, "--output", tmp_path / "page.html", expect=2)
    assert str(nothing) in result.stderr and str(empty) in result.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_comparison_leaves_out_and_names_a_run_that_cannot_be_read(finished, tmp_path):
    broken = shutil.copytree(finished[1].path, tmp_path / "broken")
    (broken / "summary.json").write_text("[]")
    result = run("report", broken, finished[3].path, "--output", tmp_path / "page.html", expect=3)
    assert f"page.html: a report without 1 run that cannot be read:\n  {broken}/summary.json: is not" in result.stderr
    assert Page(tmp_path / "page.html").words.split("Written by")[0] == Page(finished[3].path / "report.html").words.split("Written by")[0]
    assert not run("report", broken, "--output", tmp_path / "alone.html", expect=3).stdout and not (tmp_path / "alone.html").exists()


def test_a_folder_without_a_run_is_refused(tmp_path):
    result = run("report", tmp_path / "mistyped", "--output", tmp_path / "page.html", expect=2)
    assert result.stderr == f"mnist-train report: {tmp_path}/mistyped: no such folder; expected run folders\n"
    assert not (tmp_path / "page.html").exists()


def test_the_page_follows_a_run_through_a_stop_and_a_resume(tmp_path):
    changes = {"epochs": 3, "data": {"limit_train": 5120}}
    with start(tmp_path, changes) as process:
        page = process.run_folder.path / "report.html"
        wait_until(lambda: len(process.run_folder.epochs()) > 0 and page.exists(), "the first epoch")
        assert "running: this page refreshes itself" in Page(page).words
        assert "http-equiv=\"refresh\"" in page.read_text()
        # The report command also sees that the run is still in progress.
        assert "running" in run("report", process.run_folder.path, "--output", "-").stdout
        process.send(signal.SIGTERM)
        assert process.wait() == 143
    assert "stopped by a signal" in Page(page).words
    folder = train(tmp_path, changes, "--resume", "auto", processes=1)
    words = Page(page).words
    assert "2 times, including resumes and restarts after a lost process." in words and "3 of 3" in words
    starts = folder.rows("lineage.jsonl")
    assert [start["world_size"] for start in starts] == [2, 1]
    assert starts[0]["resumed_from"] is None
    assert starts[1]["resumed_from"].endswith(f"step-{starts[1]['step']:08}.safetensors")
    assert starts[1]["config_hash"] == folder.summary()["config_hash"]
    assert [start["data"]["train"] for start in starts] == [5120, 5120] and "class_names" not in starts[0]["data"]


def test_an_unwritable_page_does_not_end_a_run_but_unwritable_predictions_do(tmp_path):
    (tmp_path / "first" / "report.html").mkdir(parents=True)
    folder = train(tmp_path, SHOWN | {"epochs": 2}, output="first")
    assert folder.stderr.count("the run continues without its report") == 1
    assert "report: " not in folder.stderr and "best weights: " in folder.stderr
    assert folder.summary()["status"] == "finished"
    (tmp_path / "second" / "predictions.jsonl").mkdir(parents=True)
    broken = train(tmp_path, SHOWN, output="second", expect=1)
    assert "predictions.jsonl" in broken.stderr


def test_disabled_reports_are_not_written(tmp_path):
    folder = train(tmp_path, {"epochs": 1, "data": {"limit_train": 256},
                              "report": {"html": False, "tensorboard": False, "predictions": {"batches": 0}}})
    left = {path.name.split(".out.")[0] for path in folder.path.iterdir()}
    assert not left & {"report.html", "predictions.jsonl", "mistakes.jsonl", "events"}
    assert folder.epochs()[0]["confusion"]
