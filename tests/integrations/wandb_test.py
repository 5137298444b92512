"""Reads offline files written by scripts/integrations/wandb_sync with the reader of the real wandb."""

import json
import subprocess

import pytest
from python_tools import NEEDED, PYTHON, SCRIPTS, run_python
from support import environment, start, train

pytestmark = NEEDED

# 10 steps per epoch, so an epoch does not always end at a recorded step.
CHANGES = {"epochs": 2, "log_interval": 4, "data": {"limit_train": 1280, "limit_test": 100}}

READER = r"""
import json, pathlib, sys
import wandb
wandb._set_internal_process()
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore
store = DataStore()
store.open_for_scan(sys.argv[1])
found = {"config": {}, "history": [], "summary": {}, "artifacts": []}
def fields(items):
    return {".".join(item.nested_key) if item.nested_key else item.key: json.loads(item.value_json) for item in items}
while (data := store.scan_data()) is not None:
    record = Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    if kind == "run":
        found["config"].update(fields(record.run.config.update))
    elif kind == "config":
        found["config"].update(fields(record.config.update))
    elif kind == "history":
        found["history"].append(fields(record.history.item))
    elif kind == "summary":
        found["summary"].update(fields(record.summary.update))
    elif kind == "artifact":
        found["artifacts"].append({"name": record.artifact.name, "type": record.artifact.type,
                                   "files": [entry.path for entry in record.artifact.manifest.contents]})
    elif kind == "request" and record.request.HasField("log_artifact"):
        artifact = record.request.log_artifact.artifact
        found["artifacts"].append({"name": artifact.name, "type": artifact.type,
                                   "files": [entry.path for entry in artifact.manifest.contents]})
print(json.dumps(found))
"""


def offline(folder):
    return {"WANDB_MODE": "offline", "WANDB_DIR": folder, "WANDB_SILENT": "true", "HOME": folder,
            "WANDB_CACHE_DIR": folder / "cache", "WANDB_DATA_DIR": folder / "data"}


def read_back(folder):
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    return json.loads(run_python("-c", READER, path).stdout), path.parent


def image_of(row):
    return json.loads(row)["image"]


def check(found, run_folder):
    config = run_folder.read_json("config.json")
    for key in ("epochs", "learning_rate", "model", "data"):
        assert found["config"][key] == config[key]
    losses = {row["_step"]: row["loss"] for row in found["history"] if "loss" in row}
    assert losses == {step["step"]: step["loss"] for step in run_folder.steps()}
    epochs = [(row["_step"], row["epoch"], row["test_loss"], row["accuracy"]) for row in found["history"] if "accuracy" in row]
    assert epochs == [(epoch["step"], epoch["epoch"], epoch["test_loss"], epoch["test_accuracy"]) for epoch in run_folder.epochs()]
    models = [artifact for artifact in found["artifacts"] if artifact["type"] == "model"]
    assert [artifact["files"] for artifact in models] == [["model.pt"]]


def test_a_finished_run_is_uploaded_completely(tmp_path):
    run_folder = train(tmp_path, CHANGES)
    run_python(SCRIPTS / "wandb_sync", run_folder.path, folder=tmp_path, variables=offline(tmp_path))
    found, folder = read_back(tmp_path)
    check(found, run_folder)
    assert found["summary"]["test_accuracy"] == run_folder.summary()["test_accuracy"]
    rows = (run_folder.path / "predictions.jsonl").read_text().splitlines()
    (table,) = folder.glob("files/media/table/predictions*.table.json")
    content = json.loads(table.read_text())
    assert content["columns"][:4] == ["id", "image", "guess", "truth"]
    assert len(content["data"]) == len(rows) > 0
    (pictures,) = [artifact["files"] for artifact in found["artifacts"] if artifact["type"] == "run_table"]
    assert len([path for path in pictures if path.endswith(".png")]) == len(set(map(image_of, rows)))


def test_a_run_in_progress_is_followed_until_it_ends(tmp_path):
    with start(tmp_path, {**CHANGES, "epochs": 3, "data": {"limit_train": 6400, "limit_test": 100}}) as process:
        process.wait_for_step(5)
        command = [PYTHON, SCRIPTS / "wandb_sync", "--follow", process.run_folder.path]
        follower = subprocess.Popen(command, cwd=tmp_path, env=environment(**offline(tmp_path)),
                                    stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.wait() == 0, process.stderr
        _, stderr = follower.communicate(timeout=100)
        assert follower.returncode == 0, stderr
        check(read_back(tmp_path)[0], process.run_folder)


@pytest.mark.parametrize("name", ["nothing", "."])
def test_a_folder_without_a_run_is_refused(tmp_path, name):
    result = run_python(SCRIPTS / "wandb_sync", tmp_path / name, variables=offline(tmp_path), expect=1)
    assert "contains no run" in result.stderr
