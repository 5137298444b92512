"""Tests configs and command lines of the real binary, without training."""

import json
import time

import pytest
from support import REPOSITORY, printed_json, run

PLAIN = {
    "epochs": 10,
    "batch_size": 128,
    "test_batch_size": 1000,
    "learning_rate": 0.01,
    "sgd_momentum": 0.5,
    "seed": 1,
    "backend": "nccl",
    "log_interval": 10,
}


def effective(*arguments, **others):
    result = run(*arguments, "--dry-run", expect=0, **others)
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.json")), ids=lambda path: path.name)
def test_every_shipped_config_is_valid(path):
    effective("--config", path)


def test_the_mnist_config_has_the_hyperparameters_of_pytorchs_ddp_example():
    config = effective("--config", REPOSITORY / "configs/mnist.json")
    assert config["model"]["name"] == "net"
    assert config["data"]["dataset"] == "mnist"
    recipe = ("batch_size", "learning_rate", "sgd_momentum", "epochs", "test_batch_size", "seed", "log_interval")
    assert [config[key] for key in recipe] == [128, 0.01, 0.5, 10, 1000, 1, 100]


def test_the_effective_config_reproduces_itself(tmp_path):
    first = effective("-c", "-", "--set", "launch.devices=[\"cpu\"]", input=json.dumps(PLAIN | {"backend": "gloo"}))
    again = effective("-c", "-", input=json.dumps(first))
    assert again == first


def test_all_errors_are_reported_at_once_one_per_line(tmp_path):
    (tmp_path / "bad.json").write_text('{\n  "epochs": "ten",\n  "lr": 0.1,\n  "launch": {"keep": 3}\n}\n')
    result = run("--config", "bad.json", "--set", "seed=-1", folder=tmp_path, expect=2)
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        'bad.json:2:13: /epochs: expected an integer from 1 to 2147483647, found the string "ten"',
        'bad.json:3:3: /lr: unknown key "lr"; did you mean "learning_rate"?',
        'bad.json:4:14: /launch/keep: unknown key "keep"; it belongs in /checkpoint',
        "--set seed=-1: /seed: expected an integer from 0 to 9223372036854775807, found -1",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "bad.json"]


def test_a_leading_tilde_expands_to_the_home_folder(tmp_path):
    home = {"HOME": str(tmp_path / "home")}
    assert effective("-c", "-", "--output=~/x", input="{}", folder=tmp_path, variables=home)["output"] == str(tmp_path / "home/x")
    for command in (["evaluate", "--checkpoint=~/w.pt"], ["train", "--config", "-", "--resume=~/w.pt"], ["report", "~/r", "--output=o"],
                    ["convert", "--from=idx:~/none", "--to=lmdb:~/made"], ["predict", "--checkpoint=~/w.pt", "i.png"]):
        refused = run(*command, input="{}", folder=tmp_path, variables=home)
        assert str(tmp_path / "home") in refused.stderr, (command, refused.stderr)
    assert not list(tmp_path.iterdir())


def test_the_schema_is_valid_and_agrees_with_the_binary():
    jsonschema = pytest.importorskip("jsonschema")
    document = printed_json("config-schema")
    jsonschema.Draft202012Validator.check_schema(document)
    validator = jsonschema.Draft202012Validator(document)
    assert not list(validator.iter_errors(effective("-c", "-", input="{}")))
    assert not list(validator.iter_errors(PLAIN))
    judged = [
        ({}, True),
        ({"epochs": 0}, False),
        ({"epoch": 1}, False),
        ({"learning_rate": -1}, False),
        ({"device": "gpu"}, False),
        ({"launch": {"processes_per_node": "auto"}}, True),
        ({"launch": {"devices": ["cuda:0", "cpu"]}}, True),
        ({"data": {"format": "idx", "train": "a", "test": {"images": "b", "labels": "c"}}}, True),
        ({"data": {"format": "idx", "train": "a", "test": {"images": "b"}}}, False),
        ({"data": {"augment": ["horizontal_flip", {"name": "random_crop", "padding": 2}]}}, True),
        ({"data": {"augment": [{"name": "rotate"}]}}, False),
        ({"$schema": "./schema.json"}, True),
        ({"batch_size": 1, "batch_size_per_process": 2}, False),
        ({"batch_size": None, "batch_size_per_process": 2}, True),
        ({"nesterov": True, "sgd_momentum": 0}, False),
        ({"nesterov": True, "optimizer": "adam"}, False),
        ({"nesterov": False, "optimizer": "adam"}, True),
        ({"early_stopping": {"min_delta": 0.1}}, False),
        ({"early_stopping": None, "ema": None}, True),
        ({"epochs": 2.0, "seed": 1e18, "data": {"size": [32.0, 32]}}, True),
        ({"epochs": 2.5}, False),
        ({"schedule": {"name": "one_cycle", "max_learning_rate": 0.1, "pct_start": 0.25}}, True),
        ({"schedule": {"name": "one_cycle", "max_learning_rate": 0.1, "warmup_epochs": 1}}, False),
        ({"schedule": {"name": "one_cycle", "max_learning_rate": 0.1, "warmup_epochs": 0.0}}, True),
        ({"schedule": {"name": "cosine", "patience": 3}}, False),
        ({"gradient_averaging": {"strategy": "shared_memory", "compression": "bf16"}}, False),
        ({"model": {"hidden": [10]}}, False),
        ({"model": {"layers": []}}, False),
        ({"model": {"layers": ["flatten", {"name": "linear", "out_features": 10},
                               {"name": "residual", "layers": ["tanh"], "shortcut": []}]}}, True),
        ({"data": {"dataset": "mnist", "format": "synthetic"}}, False),
        ({"data": {"format": "synthetic", "train": "a"}}, False),
        ({"data": {"format": "lmdb", "test": "b"}}, False),
        ({"data": {"format": "lmdb", "train": "a", "test": "b", "on_bad_sample": "skip", "size": 9, "channels": 3}}, True),
        ({"data": {"on_bad_sample": "skip"}}, False),
        ({"data": {"format": "lmdb", "train": "a", "test": "b", "decode": "stream", "decode_threads": 3}}, True),
        ({"data": {"channels": 2}}, False),
        ({"data": {"format": "idx", "train_per_process": ["a"], "test": "b"}}, True),
        ({"data": {"format": "idx", "train_per_process": ["a"], "test": "b", "split": "throughput"}}, False),
        ({"data": {"normalize": {}, "augment": ["mixup", {"name": "normalize"}]}}, False),
        ({"backend": "nccl", "device": "cpu"}, False),
        ({"device": "cpu", "launch": {"devices": ["cuda:0"]}}, False),
        ({"device": "cpu", "launch": {"devices": ["cpu", "cpu"]}}, True),
        ({"cuda_graphs": "on", "gradient_accumulation_steps": 2}, False),
        ({"cuda_graphs": "on", "device": "cuda"}, True),
        ({"device": "cuda", "gradient_averaging": {"strategy": "shared_memory"}}, False),
        ({"model_file": "../model.pt"}, False),
        ({"model_file": "model.bin"}, False),
        ({"model_file": "model.safetensors"}, True),
        ({"model_file": "metrics.jsonl"}, False),
        ({"accuracies_file": "events.out.tfevents.7"}, False),
        ({"model_file": "a/..b/checkpoints.pt"}, True),
    ]
    for config, is_sound in judged:
        assert validator.is_valid(config) == is_sound, config
        assert (run("-c", "-", "--dry-run", input=json.dumps(config)).returncode == 0) == is_sound, config


def test_every_default_in_the_schema_is_the_effective_default():
    def check(properties, values):
        for key, rule in properties.items():
            if key == "$schema":
                continue
            if "properties" in rule:
                check(rule["properties"], values[key])
            elif "default" in rule:
                assert values[key] == rule["default"], key

    check(printed_json("config-schema")["properties"], effective("-c", "-", input="{}"))


def test_the_effective_config_shows_integers_however_they_were_written():
    plugin = '{"epochs": 2.0, "model": {"plugin": "libmine.so", "options": {"width": 6.4e1, "p": 0.5}}}'
    config = effective("-c", "-", "--set", "seed=1e3", input=plugin)
    written = json.dumps([config["epochs"], config["seed"], config["model"]["options"]])
    assert written == '[2, 1000, {"width": 64, "p": 0.5}]'


def test_reading_a_config_is_fast(tmp_path):
    (tmp_path / "cfg.json").write_text(json.dumps(PLAIN))
    seconds = []
    for _ in range(10):
        started = time.monotonic()
        effective("--config", tmp_path / "cfg.json")
        seconds.append(time.monotonic() - started)
    assert min(seconds) < 0.05


def test_files_that_are_not_configs_are_refused_at_once_with_the_position(tmp_path):
    for content in (b"", b"[" * 100000, b'{"output": "\xe9"}', b'{"epochs": 1', b"[]", b"{}\0"):
        (tmp_path / "bad.json").write_bytes(content)
        refused = run("--config", "bad.json", "--dry-run", folder=tmp_path, timeout=5, expect=2)
        assert refused.stderr.startswith("bad.json:1:") and refused.stdout == "", content[:20]
    for path in (tmp_path, tmp_path / "nowhere.json"):
        run("--config", path, "--dry-run", expect=2)


def test_the_version_lists_the_libraries_of_the_build():
    words = run("--version").stdout.strip().split(", ")
    assert words[0].startswith("mnist-train ")
    names = [word.split(" ")[0] for word in words[1:]]
    assert names == ["commit", "LibTorch", "CUDA", "NCCL", "DALI", "compiler"]
