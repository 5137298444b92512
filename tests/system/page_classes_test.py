"""The page of a run with two to a thousand classes of unequal sizes, made from its folder."""

import json
import re

import pytest

from support import run


def write_run(folder, classes):
    """A run whose classes shrink from 40 images to 2, and which never predicts the last one."""
    folder.mkdir()
    sizes = [max(2, 40 - label * 38 // (classes - 1)) for label in range(classes)]
    names = [f"<i>{label}" + "x" * 200 for label in range(classes)]
    confusion = [[0] * classes for _ in sizes]
    for label, size in enumerate(sizes):
        confusion[label][label if label + 1 < classes else 0] = size
    right = sum(confusion[label][label] for label in range(classes))
    epoch = {"event": "epoch", "epoch": 1, "test_accuracy": right / sum(sizes), "confusion": confusion}
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text(json.dumps(epoch) + "\n")
    (folder / "lineage.jsonl").write_text(json.dumps({"data": {"classes": classes, "class_names": names}}) + "\n")
    (folder / "dataset.json").write_text(json.dumps({
        "classes": [{"name": name, "train": 3 * size, "validation": 0, "test": size} for name, size in zip(names, sizes)],
        "left_out": {"files": {".tif": 12}}}))
    return names


@pytest.mark.parametrize("classes", [2, 22, 200, 1000])
def test_the_page_names_unpredicted_classes_and_stays_readable(tmp_path, classes):
    names = write_run(tmp_path / "run", classes)
    page = tmp_path / "page.html"
    run("report", tmp_path / "run", "--output", page, expect=0)
    text = page.read_text()
    assert f"1 of {classes:,} classes is never predicted" in text
    assert names[-1].replace("<", "&lt;").replace(">", "&gt;") in text
    assert "<i>" not in text
    assert "Yes: " not in text
    assert "files › .tif" in text
    listed = re.search(r"Accuracy, precision and F1 by class.*?</table>", text, re.S).group()
    assert listed.count('<th scope="row">') == min(classes, 50)
    assert len(text) < 800_000
