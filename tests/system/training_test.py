"""Tests the accuracy and the output files of a run."""

import pytest
from support import BINARY, LONG_S, REPOSITORY, Process, RunFolder, run, train, train_command, write_config

STEP_FIELDS = {"event", "epoch", "step", "loss", "learning_rate", "samples_per_second", "time"}
EPOCH_FIELDS = {"event", "epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "train_seconds", "test_seconds"}
SUMMARY_FIELDS = {
    "status", "epochs", "world_size", "backend", "device", "precision", "startup_seconds", "train_seconds",
    "test_seconds", "wall_seconds", "samples_per_second", "test_accuracy", "best_test_accuracy", "samples_seen",
    "restarts", "peak_memory_bytes", "versions", "config_hash", "data_hash",
}


# Apart from configs/mnist_fast.json below, the only system test that trains on all of MNIST; it takes about 10 s on two cores.
@pytest.fixture(scope="module")
def full(tmp_path_factory):
    changes = {
        "epochs": 1, "batch_size": 128, "learning_rate": 0.01, "sgd_momentum": 0.5, "test_batch_size": 1000,
        "deterministic": False, "log_interval": 100, "data": {"limit_train": None, "limit_test": None},
        "launch": {"processes_per_node": 2},
    }
    return train(tmp_path_factory.mktemp("full"), changes, processes=2)


def test_an_epoch_of_mnist_reaches_the_accuracy_of_the_reference(full):
    (accuracy,) = full.read_json("accuracies.json")
    assert accuracy == pytest.approx(0.952, abs=0.004) and isinstance(accuracy, float)


def test_one_fast_epoch_reaches_99_percent(tmp_path):
    run("--config", REPOSITORY / "configs" / "mnist_fast.json", "--output", tmp_path / "run", "--set", "device=cpu", expect=0)
    assert RunFolder(tmp_path / "run").summary()["test_accuracy"] > 0.988  # individual seeds reach 0.9895 to 0.9915


def test_synthetic_digits_are_learned(tmp_path):
    data = {"dataset": None, "format": "synthetic"}
    assert 0.8 < train(tmp_path, {"epochs": 4, "data": data}).summary()["best_test_accuracy"] < 1


def test_metrics_record_every_interval_and_every_epoch(full):
    steps, (epoch,) = full.steps(), full.epochs()
    assert len(steps) + 1 == len(full.lines())
    assert [(step["step"], step["epoch"]) for step in steps] == [(100, 1), (200, 1), (300, 1), (400, 1)]
    assert all(STEP_FIELDS <= set(step) and step["learning_rate"] == 0.01 for step in steps)
    assert steps[-1]["loss"] < steps[0]["loss"] / 2
    assert EPOCH_FIELDS <= set(epoch) and epoch["epoch"] == 1
    assert [epoch["test_accuracy"]] == full.read_json("accuracies.json")
    assert 0.8 < epoch["train_accuracy"] < 1 and epoch["train_seconds"] > epoch["test_seconds"]


def test_the_summary_describes_the_run(full):
    summary = full.summary()
    assert SUMMARY_FIELDS <= set(summary)
    known = {"status": "finished", "epochs": 1, "world_size": 2, "backend": "gloo", "device": "cpu",
             "precision": "fp32", "samples_seen": 60000, "restarts": 0}
    assert {key: summary[key] for key in known} == known
    assert [summary["test_accuracy"]] == [summary["best_test_accuracy"]] == full.read_json("accuracies.json")
    assert 0 < summary["startup_seconds"] < summary["wall_seconds"]
    assert summary["train_seconds"] + summary["test_seconds"] < summary["wall_seconds"]
    assert summary["samples_per_second"] == pytest.approx(60000 / summary["train_seconds"])
    assert 50e6 < summary["peak_memory_bytes"] < 600e6
    assert (summary["parameters"], summary["multiply_adds"]) == (431_080, 2_293_000)


def test_the_run_folder_has_the_documented_files(full):
    names = {path.name for path in full.path.iterdir() if not path.name.startswith(".")}
    (events,) = (name for name in names if name.startswith("events.out.tfevents."))
    assert names - {events} == {"config.json", "accuracies.json", "model.pt", "metrics.jsonl", "summary.json",
                                "checkpoints", "logs", "predictions.jsonl", "mistakes.jsonl", "lineage.jsonl",
                                "report.html", "dataset.json"}
    assert {path.name for path in (full.path / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
    assert [path.stem for path in full.checkpoints()] == ["step-00000469"]


def test_best_checkpoints_between_the_scheduled_ones_are_kept_only_as_the_best(tmp_path):
    folder = train(tmp_path, {"epochs": 6, "batch_size": 125, "data": {"limit_train": 1000, "limit_test": 1000},
                              "checkpoint": {"every_epochs": 3, "keep": 10}})
    assert [path.stem for path in folder.checkpoints()] == ["step-00000024", "step-00000048"]
    assert (folder.path / "checkpoints" / "best.safetensors").exists()


def test_the_saved_config_reproduces_the_run_bit_for_bit(tmp_path):
    first = train(tmp_path, {"learning_rate": 0.03, "data": {"limit_train": 1280}}, processes=2, output="first")
    written = first.read_json("config.json")
    assert "output" not in written and written["learning_rate"] == 0.03
    again = [BINARY, "--config", first.path / "config.json", "--output", tmp_path / "again"]
    with Process(again, tmp_path, tmp_path / "again") as process:
        assert process.wait() == 0, process.stderr
        assert process.run_folder.digest() == first.digest()
        assert process.run_folder.read_json("config.json") == written
    other = train(tmp_path, {"learning_rate": 0.031, "data": {"limit_train": 1280}}, processes=2, output="other")
    assert other.digest() != first.digest()


def test_a_quiet_run_prints_nothing(tmp_path):
    config = write_config(tmp_path, {"sgd_momentum": 0.9})  # so that it predicts all classes; otherwise it would print a warning
    command = train_command(config, tmp_path / "run", 2, "--quiet")
    with Process(command, tmp_path) as process:
        assert process.wait(LONG_S) == 0
        assert (process.stderr, process.stdout) == ("", "")


def test_hashes_identify_data_and_config(tmp_path):
    runs = [{"max_steps": 1}, {"max_steps": 1}, {"max_steps": 1, "seed": 2}, {"max_steps": 1, "data": {"limit_train": 2000}}]
    summaries = [train(tmp_path, changes, output=f"run{number}").summary() for number, changes in enumerate(runs)]
    assert len({summary["config_hash"] for summary in summaries}) == 3
    assert [summary["data_hash"] == summaries[0]["data_hash"] for summary in summaries] == [True, True, True, False]
