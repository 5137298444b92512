"""Tests refused starts: the messages, the processes that print them, and that no files are left behind."""

import json
import re
import shutil
import signal
import time
from pathlib import Path

import numpy
import pytest
from support import (BINARY, MNIST, Process, at_once, environment, free_port, mnist_bytes, own_data, rank_variables, run, run_program,
                     swept, train, wait_until, worker, write_config, write_idx_folder)


@pytest.mark.parametrize("launcher", ["own", "another"])
def test_a_user_error_is_reported_without_rank_and_leaves_no_folder(tmp_path, launcher):
    config = write_config(tmp_path, {"data": own_data("idx", "/nowhere")})
    before = sorted(tmp_path.iterdir())
    refused = run("--config", config, folder=tmp_path, variables=rank_variables() if launcher == "another" else None, expect=3)
    assert re.match(r"mnist-train failed: (loading data: )?/nowhere: no such file", refused.stderr), refused.stderr
    assert "checkpoint" not in refused.stderr and "pid" not in refused.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_missing_data_set_is_reported_with_the_command_that_downloads_it(tmp_path):
    (tmp_path / "empty").mkdir()
    config = write_config(tmp_path, {"data": {"dataset": "fashion-mnist"}})
    variables = {"MNIST_TRAIN_DATA": tmp_path / "empty", "XDG_CACHE_HOME": tmp_path / "empty"}
    refused = run("--config", config, folder=tmp_path, variables=variables, expect=3)
    first = refused.stderr.splitlines()[0]
    assert "mnist-train fetch fashion-mnist --to " + str(tmp_path / "empty/mnist-train/fashion-mnist") in first, first


@pytest.mark.parametrize("config, made", [("dali_mlp", "--to lmdb:{}/data/mnist-lmdb`"),
                                          ("mixup_image_folder", "pictures (.jpg, .jpeg, .jpe, .jfif, .png, .webp, .bmp, .ppm, .pgm, .pnm) there")])
def test_a_shipped_config_without_its_data_reports_how_to_get_the_data(tmp_path, config, made):
    refused = run("--config", config, "--set", "device=cpu", folder=tmp_path, expect=3)
    line = next(line for line in refused.stderr.splitlines() if line.startswith("mnist-train failed: "))
    assert "no such file or folder (data.train)" in line and made.format(tmp_path) in line, line


def test_an_unusable_file_is_reported_with_its_position_in_the_config(tmp_path):
    (tmp_path / "model.ts").write_text("junk")
    config = tmp_path / "config.json"
    for launcher in (None, rank_variables()):
        write_config(tmp_path, {"model": {"torchscript": "model.ts"}})
        column = config.read_text().index('"model.ts"') + 1
        refused = run("--config", config, folder=tmp_path, variables=launcher, expect=2)
        assert refused.stderr.startswith(f"mnist-train failed: {config}:1:{column}: /model/torchscript: "), refused.stderr


LINEAR = ["flatten", {"name": "linear", "out_features": 10}]


REVEALED = [  # config changes, text at the reported position, key
    ({"data": {"augment": [{"name": "random_crop", "size": 40}]}}, '{"name": "random_crop"', "/data/augment/0"),
    ({"data": own_data("idx", MNIST, augment=[{"name": "random_crop", "size": 40}]), "model": {"layers": LINEAR}},
     '{"name": "random_crop"', "/data/augment/0"),
    ({"data": {"size": 4}, "model": {"name": "net"}}, '"net"', "/model/name"),
    ({"model": {"layers": ["flatten", {"name": "linear", "out_features": 7}]}}, '{"name": "linear"', "/model/layers/1"),
    ({"data": own_data("idx", MNIST) | {"train": None, "train_per_process": [str(MNIST)] * 2}}, f'["{MNIST}"', "/data/train_per_process")]


@pytest.mark.parametrize("launcher, changes, place, key", [("another", *REVEALED[1]), *(("own", *case) for case in REVEALED)])
def test_an_error_found_after_the_start_is_reported_with_its_position_in_the_config(tmp_path, launcher, changes, place, key):
    config = write_config(tmp_path, changes)
    column = config.read_text().index(place) + 1
    flags = ["--nproc-per-node", 1] if launcher == "own" else []
    variables = rank_variables() if launcher == "another" else None
    refused = run("--config", config, *flags, folder=tmp_path, variables=variables, expect=2)
    assert f"{config}:1:{column}: {key}: " in refused.stderr.splitlines()[0], refused.stderr
    if launcher == "own" and key.startswith("/data/augment"):
        for command in (["preview", "--output", tmp_path / "grid.png"], ["describe"]):
            refused = run(command[0], "--config", config, *command[1:], folder=tmp_path, expect=2)
            assert f"{config}:1:{column}: /data/augment/0: random_crop needs 40x40" in refused.stderr, (command, refused.stderr)


@pytest.mark.parametrize("data_format, name, kind", [("lmdb", "mnist.npz", "a NumPy archive (.npz)"), ("idx", "train.csv", "a CSV file"),
                                                     ("image-list", "list.json", "a JSON file")])
def test_data_in_another_format_is_refused_with_a_remedy(tmp_path, data_format, name, kind):
    folder = tmp_path / "set"
    folder.mkdir()
    if kind.startswith("a NumPy"):
        numpy.savez(folder / name, images=numpy.zeros((2, 28, 28), "uint8"))
    else:
        (folder / name).write_text("label,pixel0\n5,0\n")
    for place in (folder / name, *[folder] * (data_format != "image-list")):
        text = json.dumps({"device": "cpu", "data": {"format": data_format, "train": str(place), "test": str(place)}})
        first = run("--config", "-", input=text, folder=tmp_path, expect=3).stderr.splitlines()[0]
        assert 'data.format "image-folder"' in first, first
        expected = f"; it contains {name}, {kind}: " if place == folder else f"{place}: is {kind}, which cannot be used here; "
        assert expected in first, first
        assert ('data.format to "image-list"' in first) == (kind != "a NumPy archive (.npz)")


def test_json_with_300_000_keys_is_refused_or_read_within_seconds(tmp_path):
    keys = 300_000
    tensors = {f"layer{number}": {"dtype": "U8", "shape": [1], "data_offsets": [number, number + 1]} for number in range(keys)}
    many = {f"k{number}": number for number in range(keys)}
    state = {"__metadata__": {"mnist-train.state": json.dumps({"version": 1, "config": many})}}
    for name, header, data in (("tensors", tensors, bytes(keys)), ("state", state, b"")):
        text = json.dumps(header).encode()
        (tmp_path / f"{name}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    config = write_config(tmp_path)
    trained = train(tmp_path, {"max_steps": 1}).path
    (trained / "summary.json").write_text(json.dumps(many | {"status": "running"}))
    (trained / "config.json").write_text(json.dumps({"model": many}))
    for command, code in (
        (["evaluate", "--config", config, "--checkpoint", "tensors.safetensors", "--nproc-per-node", 1], 5),
        (["evaluate", "--checkpoint", "state.safetensors"], 2),
        (["report", trained, "--output", "page.html"], 0),
    ):
        run(*command, folder=tmp_path, timeout=20, expect=code)  # comparing each key with all others would take minutes


def test_all_ranks_exit_at_once_if_rank_0_refuses_the_folder(tmp_path):
    occupied = train(tmp_path, {"max_steps": 1}).path
    config = write_config(tmp_path, {"max_steps": 1, "launch": {"rendezvous_timeout_s": 50}})
    port = free_port()
    begin = time.monotonic()
    command = [BINARY, "--config", config, "--output", occupied]
    with at_once(Process(command, tmp_path, variables=rank_variables(rank, 2, port)) for rank in (0, 1)) as ranks:
        assert [rank.wait() for rank in ranks] == [2, 2], ranks[1].stderr
        assert time.monotonic() - begin < 40
        for rank in ranks:
            assert f"{occupied}: already contains a run" in rank.stderr, rank.stderr
        assert "rank 0 cannot start the run" in ranks[1].stderr


def test_all_ranks_report_different_configs(tmp_path):
    port = free_port()
    variables = [rank_variables(rank, 2, port) | {"TORCHELASTIC_ERROR_FILE": tmp_path / f"{rank}.json"} for rank in (0, 1)]
    with at_once(worker(tmp_path, rank, port, {"epochs": 1 + rank}, variables=variables[rank]) for rank in (0, 1)) as ranks:
        assert [rank.wait() for rank in ranks] == [2, 2], ranks[1].stderr
        for rank, process in enumerate(ranks):
            for text in (process.stderr, (tmp_path / f"{rank}.json").read_text()):
                assert "rank 1 has a different config than rank 0: give every process the same file and flags" in text
    assert not (tmp_path / "run").exists()


def test_all_ranks_report_different_data(tmp_path):
    """The second file differs in one pixel, the third in the number of images."""
    images, labels = mnist_bytes("train", 512)
    changed = images.copy()
    changed[0, 3, 3] ^= 1
    others = {"hash": (changed, labels), "train images: 500 instead of 512": (images[:500], labels[:500])}
    for number, (message, other) in enumerate(others.items()):
        variables = []
        for rank, (pixels, classes) in enumerate([(images, labels), other]):
            root = tmp_path / f"{number}-{rank}"
            root.mkdir()
            write_idx_folder(root / "mnist", pixels, classes)
            variables.append({"MNIST_TRAIN_DATA": root})
        data = {"data": {"limit_train": None, "limit_test": None}}
        port = free_port()
        with at_once(worker(tmp_path, rank, port, data, variables=variables[rank]) for rank in (0, 1)) as ranks:
            assert [rank.wait() for rank in ranks] == [3, 3], ranks[1].stderr
            for rank in ranks:
                assert re.search(rf"rank 1 on .* has different data than rank 0 on .*\({message}", rank.stderr), rank.stderr
        assert not (tmp_path / "run").exists()


def test_a_worker_that_cannot_be_executed_is_reported_without_restarts(tmp_path):
    shutil.copy(BINARY, tmp_path / "mnist-train")
    config = write_config(tmp_path, {"launch": {"max_restarts": 2}})
    file = tmp_path / "mnist-train-worker"
    for content, message in ((b"", "mnist-train-worker: Exec format error"),
                             (Path(BINARY).read_bytes()[:50000], "mnist-train-worker was killed by signal")):
        file.write_bytes(content)
        file.chmod(0o755)
        refused = run_program(tmp_path / "mnist-train", "--config", config, "--output", tmp_path / "run", expect=1, env=environment())
        assert message in refused.stderr and "restarting" not in refused.stderr, refused.stderr


def test_a_run_whose_ranks_do_not_connect_leaves_no_folder(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    config = write_config(tmp_path, {"launch": {"rendezvous_timeout_s": 2}})
    for output in (tmp_path / "new/run", own):
        refused = run("--config", config, "--output", output, variables=rank_variables(0, 2), expect=4)
        assert "1 of 2 ranks joined within 2 s" in refused.stderr, refused.stderr
    assert not (tmp_path / "new").exists()
    assert [path.name for path in own.iterdir()] == ["notes.txt"]


def test_a_result_that_cannot_be_written_is_an_error(tmp_path):
    train(tmp_path, {"max_steps": 1})
    for arguments in (("evaluate", "--checkpoint", "run/checkpoints/step-00000001.safetensors"), ("--config", "run.json", "--dry-run")):
        done = run(*arguments, folder=tmp_path, before=["sh", "-c", 'exec "$0" "$@" >&-'], expect=1)
        assert "cannot write to standard output" in done.stderr, done.stderr


@pytest.mark.parametrize("number, code", swept([(signal.SIGINT, 130), (signal.SIGTERM, 143)], [(signal.SIGTERM, 143)]))
def test_a_stopped_conversion_prints_a_message_and_leaves_no_files(tmp_path, number, code):
    (tmp_path / "to").mkdir()
    with Process([BINARY, "convert", "--from", f"idx:{MNIST}", "--to", f"image-folder:{tmp_path / 'to/k1'}"], tmp_path) as process:
        wait_until(lambda: list((tmp_path / "to").rglob("*.png")), "the first image")
        process.stop(number, code)
        assert "stopped by SIG" in process.stderr
    assert not list((tmp_path / "to").iterdir())


def test_a_stopped_doctor_reports_no_problem(tmp_path):
    with Process([BINARY, "doctor"], tmp_path) as process:
        process.wait_for_ranks(2)
        process.stop(signal.SIGINT, 130)
        assert "problem" not in process.stdout and "stopped by SIGINT" in process.stderr


def test_a_network_that_is_too_large_is_refused(tmp_path):
    config = write_config(tmp_path, {"model": {"name": "mlp", "hidden": [1048576] * 3}})
    refused = run("--config", config, "--dry-run", folder=tmp_path, expect=2)
    assert 'model "mlp" for images of 28x28: ' in refused.stderr, refused.stderr


@pytest.mark.parametrize("address, why", [("127.0.0.1", ""), ("nowhere.invalid", "cannot resolve the host name")])
def test_an_unreachable_store_is_reported_without_stack_frames(tmp_path, address, why):
    config = write_config(tmp_path, {"launch": {"rendezvous_timeout_s": 3}})
    launcher = rank_variables() | {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": address}
    refused = run("--config", config, "--output", tmp_path / "run", folder=tmp_path, variables=launcher, expect=4)
    assert f"cannot reach the store at {address}:" in refused.stderr and why in refused.stderr, refused.stderr
    assert "frame #" not in refused.stderr and "Exception raised" not in refused.stderr, refused.stderr
    assert len(refused.stderr.splitlines()) < 4, refused.stderr


def test_a_missing_network_interface_is_reported_before_the_start(tmp_path):
    config = write_config(tmp_path)
    refused = run("--config", config, "--output", tmp_path / "run", variables={"GLOO_SOCKET_IFNAME": "lo,eth99"}, expect=2)
    assert "GLOO_SOCKET_IFNAME=eth99" in refused.stderr, refused.stderr
    apart = ["unshare", "-rn"]  # the interface lo of a new network has no address
    if run_program(*apart, "true", expect=None).returncode == 0:
        refused = run("--config", config, "--output", tmp_path / "run", before=apart, variables={"GLOO_SOCKET_IFNAME": "lo"}, expect=2)
        assert "GLOO_SOCKET_IFNAME=lo: this machine has no such network interface with an address" in refused.stderr, refused.stderr
        refused = run("--config", config, "--output", tmp_path / "apart", "--nproc-per-node", 2, before=apart, expect=4)
        assert "cannot connect to 127.0.0.1: Network is unreachable" in refused.stderr, refused.stderr
    assert not (tmp_path / "run").exists()


def test_every_command_refuses_an_output_that_cannot_be_written(tmp_path):
    trained = train(tmp_path, {"max_steps": 1}).path
    config = trained / "config.json"
    for command in (["export", "--checkpoint", trained, "--output", tmp_path / "nowhere/deep/x.pt"],
                    ["export", "--checkpoint", trained, "--format", "onnx", "--output", "/proc/x.onnx"],
                    ["preview", "--config", config, "--output", "/proc/x.png"],
                    ["report", trained, "--output", "/proc/x.html"]):
        assert f"{command[-1]}: cannot create" in run(*command, folder=tmp_path, expect=2).stderr, command
    for command in (["convert", "--from", f"idx:{MNIST}", "--to", "lmdb:/proc/set"], ["fetch", "mnist", "--to", "/proc/set"],
                    ["--config", config, "--output", "/proc/set", "--nproc-per-node", 2]):
        assert "/proc/set: cannot " in run(*command, folder=tmp_path, expect=2).stderr, command
