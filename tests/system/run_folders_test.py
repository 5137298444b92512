"""Tests run folders as arguments, configs next to weights, and refused output paths."""

import json
import shutil

import numpy
import pytest
from pictures import write_png
from support import RunFolder, mnist_bytes, run, run_on_terminal, train, write_config, write_idx_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"), {"checkpoint": {"keep": 2}})


@pytest.fixture
def copy(tmp_path, trained):
    return shutil.copytree(trained.path, tmp_path / "copy")


def evaluated(*arguments):
    result = run("evaluate", *arguments, expect=0)
    return json.loads(result.stdout), result.stderr


def test_a_run_folder_resolves_to_its_best_checkpoint_else_the_newest_else_its_weights(copy):
    folder = copy / "checkpoints"
    first, newest = sorted(folder.glob("step-*"))
    shutil.copyfile(first, folder / "best.safetensors")  # so that best and newest differ
    for name in (first, newest):
        assert evaluated("--checkpoint", name)[1] == ""
    best, said = evaluated("--checkpoint", copy)
    assert said == f"{copy}: using its best checkpoint, {folder / 'best.safetensors'}\n"
    assert best == evaluated("--checkpoint", first)[0] != evaluated("--checkpoint", newest)[0]
    assert evaluated("--checkpoint", folder)[0] == best
    (folder / "best.safetensors").unlink()
    last, said = evaluated("--checkpoint", copy)
    assert said == f"{copy}: using its newest checkpoint, {newest}\n"
    assert last == evaluated("--checkpoint", newest)[0]
    shutil.rmtree(folder)
    assert evaluated("--checkpoint", copy) == (last, f"{copy}: using its final weights, {copy / 'model.pt'}\n")
    assert evaluated("--checkpoint", copy, "--quiet") == (last, "")
    (copy / "model.pt").unlink()
    assert f"{copy}: is a folder without a checkpoint" in run("evaluate", "--checkpoint", copy, expect=5).stderr


@pytest.mark.parametrize("name", ["final.pth", "sub/weights.safetensors"])
def test_weights_with_another_name_belong_to_their_run_even_if_set_aside(tmp_path, name):
    folder = train(tmp_path, {"epochs": 1, "model_file": name}).path
    shutil.rmtree(folder / "checkpoints")
    result, said = evaluated("--checkpoint", folder)
    assert said == f"{folder}: using its final weights, {folder / name}\n"
    assert evaluated("--checkpoint", folder / name)[0] == result
    aside = folder / "checkpoints/abandoned" / (folder / name).name
    aside.parent.mkdir(parents=True)
    (folder / name).rename(aside)
    assert evaluated("--checkpoint", aside)[0] == result


def test_a_deleted_working_folder_is_refused(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    refused = run("--config", "mnist", expect=2, before=["bash", "-c", f'cd {gone}; rmdir {gone}; exec "$0" "$@"']).stderr
    assert refused == "mnist-train: the working folder cannot be used (No such file or directory); cd to another one\n"


@pytest.mark.parametrize("key, ending", [("model_file", ".pt"), ("accuracies_file", "")])
def test_a_file_name_that_is_too_long_is_refused_before_training(tmp_path, key, ending):
    refused = train(tmp_path, {key: "x" * 252 + ending}, expect=1).stderr
    assert "File name too long" in refused and "epoch 1" not in refused


def test_every_command_accepts_a_run_folder(tmp_path, copy):
    image = write_png(tmp_path / "0.png", mnist_bytes("t10k", 1)[0][0])
    best = copy / "checkpoints" / "best.safetensors"
    assert run("predict", "--checkpoint", copy, image).stdout == run("predict", "--checkpoint", best, image).stdout != ""
    for name, form in (("net.pt", "pt"), ("net.onnx", "onnx"), ("net.py", "python")):
        for source in (copy, best):
            result = run("export", "--checkpoint", source, "--format", form, "--output", tmp_path / source.name / name
                         if source == copy else tmp_path / name, expect=0)
        assert (copy / name).read_bytes() == (tmp_path / name).read_bytes()
    linked = max((copy / "checkpoints").glob("step-*"))
    best.unlink()
    best.hardlink_to(linked)
    before = best.read_bytes()
    result = run("export", "--checkpoint", copy, "--format", "safetensors", "--output", linked, expect=2)
    assert "never overwritten" in result.stderr
    assert linked.read_bytes() == before


def test_a_run_folder_can_be_resumed_and_provide_initial_weights(tmp_path, trained):
    newest = trained.checkpoints()[-1]
    resumed = train(tmp_path, {"epochs": 3}, "--resume", trained.path, output="resumed")
    assert f"{trained.path}: using its newest checkpoint, {newest}\n" in resumed.stderr
    assert [epoch["epoch"] for epoch in resumed.epochs()] == [3]
    best = trained.path / "checkpoints" / "best.safetensors"
    (tmp_path / "kept").mkdir()
    shutil.copy(best, tmp_path / "kept")
    resumed = train(tmp_path, {"epochs": 3}, "--resume", tmp_path / "kept", output="from best")
    assert f"using its best checkpoint, {tmp_path}/kept/best.safetensors\n" in resumed.stderr
    started = train(tmp_path, {"epochs": 1, "model": {"weights": str(trained.path)}}, output="started")
    assert f"using its best checkpoint, {best}\n" in started.stderr
    assert started.read_json("config.json")["model"]["weights"] == str(best)


def test_weights_use_the_config_next_to_them(tmp_path, copy):
    assert evaluated("--checkpoint", copy / "model.pt")[0]["test_accuracy"] == RunFolder(copy).summary()["test_accuracy"]
    some, _ = evaluated("--checkpoint", copy / "model.pt", "--set", "data.limit_test=100")
    assert some["samples"] == 100
    alone = shutil.copy(copy / "model.pt", tmp_path)
    assert "no config.json next to it" in run("evaluate", "--checkpoint", alone, expect=2).stderr


@pytest.mark.parametrize("content", [b'{"epochs": 1}', b"1234567\0 9"])
def test_a_file_that_contains_no_weights_is_named_before_a_config_is_requested(tmp_path, content):
    (tmp_path / "some.json").write_bytes(content)
    for command in (("evaluate",), ("predict", tmp_path / "seven.png")):
        refused = run(command[0], "--checkpoint", tmp_path / "some.json", *command[1:], expect=5).stderr
        assert "some.json: is not a checkpoint, a safetensors file or a torch.save file (.pt, .pth)" in refused


def test_evaluate_prints_json_in_a_pipe_and_text_on_a_terminal(trained):
    facts, _ = evaluated("--checkpoint", trained.checkpoints()[-1])
    code, text, _ = run_on_terminal("evaluate", "--checkpoint", trained.checkpoints()[-1])
    assert code == 0
    assert text.startswith(f"test accuracy  {100 * facts['test_accuracy']:.2f} % of {facts['samples']} images\n")
    code, text, _ = run_on_terminal("evaluate", "--checkpoint", trained.checkpoints()[-1], "--json")
    assert json.loads(text) == facts


@pytest.mark.parametrize("form, model", [("image-folder", "lenet"), ("lmdb", "net")])
def test_images_too_small_for_a_network_are_refused_before_the_run_folder_is_created(tmp_path, form, model):
    pixels = numpy.arange(40 * 8 * 8, dtype=numpy.uint8).reshape(40, 8, 8)
    source = write_idx_folder(tmp_path / "idx", pixels, numpy.arange(40) % 10)
    run("convert", "--from", f"idx:{source}", "--to", f"{form}:{tmp_path / form}", expect=0)
    config = tmp_path / "small.json"
    data = {"format": form, "train": str(tmp_path / form / "train"), "test": str(tmp_path / form / "test")}
    config.write_text(json.dumps({"data": data, "model": {"name": model}, "device": "cpu"}))
    result = run("--config", config, "--output", tmp_path / "run", expect=2)
    assert result.stdout == ""
    assert f'model "{model}" for images of 8x8: a window of ' in result.stderr
    assert len(result.stderr.splitlines()) == (2 if form == "image-folder" else 1) and not (tmp_path / "run").exists()
    config.write_text(json.dumps({"data": data | {"size": 28}, "model": {"name": model}, "epochs": 1, "device": "cpu"}))
    run("--config", config, "--output", tmp_path / "run", "--nproc-per-node", 1, expect=0)


def test_no_command_overwrites_files_of_a_run(tmp_path):
    changes = {"max_steps": 2, "model_file": "out/weights.pt", "accuracies_file": "accuracies"}
    config = write_config(tmp_path, changes)
    folder = train(tmp_path, changes).path
    (tmp_path / "link").symlink_to(folder)
    (folder / "logs" / "notes").write_text("")
    shutil.copy(folder / "checkpoints/best.safetensors", tmp_path / "copy.safetensors")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    commands = [("report", folder, "--output", folder / "accuracies"), ("preview", "--config", config, "--output", folder / "accuracies")]
    for name in ("run/out/weights.pt", "link/checkpoints/best.safetensors", "run/accuracies", "link/logs/notes", "run/.lock"):
        form = "safetensors" if name.endswith("safetensors") else "pt"
        commands.append(("export", "--checkpoint", tmp_path / "copy.safetensors", "--format", form, "--output", tmp_path / name))
    for command in commands:
        refused = run(*command, expect=2)
        assert "is a file of the run in" in refused.stderr, refused.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    run("report", folder, "--output", folder / "report.html", expect=0)
    for _ in range(2):
        run("export", "--checkpoint", folder, "--output", folder / "mine.pt", expect=0)


@pytest.mark.parametrize("command, names", [("preview", ("g.jpg", "g.pt", "config.json")), ("report", ("x.png", "x.JSON", "x.pt"))])
def test_preview_and_report_refuse_names_of_other_file_types(tmp_path, command, names):
    arguments = ("--config", write_config(tmp_path)) if command == "preview" else (tmp_path,)
    for name in names:
        assert f"{command} writes ." in run(command, *arguments, "--output", tmp_path / name, expect=2).stderr


def test_the_file_name_determines_the_format_of_weights(tmp_path):
    folder = train(tmp_path, {"max_steps": 1, "model_file": "model.safetensors"}).path
    content = (folder / "model.safetensors").read_bytes()
    assert "__metadata__" in json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
    config = folder / "config.json"
    run("evaluate", "--config", config, "--checkpoint", folder / "model.safetensors", expect=0)


@pytest.mark.parametrize("name", ["model.pt", "accuracies.json", "report.html", "dataset.json"])
def test_a_run_does_not_replace_results_without_a_run(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("precious")
    refused = train(tmp_path, {"max_steps": 1}, expect=2)
    assert f"already contains {name}, which the run would replace" in refused.stderr
    assert (tmp_path / "run" / name).read_text() == "precious"


def test_event_files_of_other_programs_are_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    foreign = tmp_path / "run" / "events.out.tfevents.9900000000.host.1.0"
    foreign.write_bytes(bytes(5000))
    train(tmp_path, {"max_steps": 3})
    train(tmp_path, {"max_steps": 5}, "--resume", "auto")
    assert foreign.read_bytes() == bytes(5000)
    assert len(list((tmp_path / "run").glob("events.out.tfevents.*.mnist-train"))) == 1


@pytest.mark.parametrize("rest", ["", "\0" * 1_000_000], ids=["short", "zeros"])  # a crash may leave zeros
def test_a_damaged_list_of_metrics_is_continued_after_its_last_whole_line(tmp_path, rest):
    first = train(tmp_path, {"max_steps": 3, "log_interval": 1})
    metrics = first.path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(lines[0] + lines[1][:30] + rest)
    resumed = train(tmp_path, {"max_steps": 5, "log_interval": 1}, "--resume", "auto")
    assert "metrics.jsonl: records before the resumed step are missing" in resumed.stderr
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()][0] == 1
