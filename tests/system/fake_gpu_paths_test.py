"""Runs every path of the GPU host code on mock GPUs: each run finishes and takes the requested path.

Mock GPUs do not compute, so results are not compared."""

import re

import pytest
from fake_gpus import ON_GPU, RESNET18, devices_in, devices_of_ranks, fake_gpus, needs_fake_gpus, reports
from support import at_once, free_port, merged, mnist_bytes, own_data, run, swept, train, worker, write_config, write_idx_folder

pytestmark = needs_fake_gpus

STEPS = 20  # per epoch of ON_GPU
ONE_EPOCH = ON_GPU | {"epochs": 1}
PATHS = {  # name: GPUs, ranks, config changes, execution of the step
    "eager": (1, 1, {"cuda_graphs": "off"}, "eager"),
    # The first kernel of the backward pass is a custom kernel, launched by a thread that has no CUDA context yet.
    "activation as the last layer": (1, 1, {"cuda_graphs": "off", "model": {"layers": [
        "flatten", {"name": "linear", "out_features": "classes"}, "relu"]}}, "eager"),
    "shards on three GPUs": (3, 3, {"deterministic": {"shards": 4}}, "graph"),
    "resnet18 in shards": (2, 2, RESNET18 | {"deterministic": {"shards": 3}}, "graph"),
    "shards with accumulation": (2, 2, {"deterministic": {"shards": 3}, "gradient_accumulation_steps": 2}, "eager"),
    "accumulation and clipping": (1, 1, {"gradient_accumulation_steps": 2, "max_gradient_norm": 1}, "eager"),
    "adamw": (1, 1, {"optimizer": "adamw", "sgd_momentum": 0, "weight_decay": 0.01}, "graph"),
    "augmentation": (1, 1, {"data": {"augment": [{"name": "random_crop", "padding": 2}, "mixup"]}}, "graph"),
    "class weights with mixup and accumulation": (1, 1, {"class_weights": {"3": 2}, "gradient_accumulation_steps": 2,
                                                    "data": {"augment": ["mixup"]}}, "eager"),
    "class weights in shards": (2, 2, {"class_weights": {"3": 2}, "deterministic": {"shards": 3},
                                        "data": {"augment": ["mixup"]}}, "graph"),
    "torchvision's augmentation": (1, 1, {"deterministic": True, "data": {"augment": [
        {"name": "random_crop", "padding": 2, "fill": "background"}, {"name": "random_resized_crop", "size": 28},
        "vertical_flip", {"name": "rotate", "degrees": 5, "fill": 9},
        {"name": "color_jitter", "brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "hue": 0.1}, "trivial_augment",
        "random_erasing", "cutmix"]}}, "graph"),
    "cutmix across shards": (2, 2, {"deterministic": {"shards": 4}, "data": {"augment": [
        {"name": "cutmix", "scope": "global"}]}}, "graph"),
    "held-out split": (1, 1, {"data": {"validation": 0.2}}, "graph"),
    "clipping, ema, one_cycle and histograms": (1, 1, {
        "max_gradient_norm": 1, "ema": {}, "schedule": {"name": "one_cycle", "max_learning_rate": 0.01},
        "report": {"histograms": True, "tensorboard": True}}, "graph"),
    "bucketed": (2, 2, {"gradient_averaging": {"strategy": "bucketed"}}, "eager"),
    "class weights and bf16 gradients": (2, 2, {"class_weights": "balanced", "label_smoothing": 0.1,
                                                "gradient_averaging": {"compression": "bf16"}}, "graph"),
    "fp16 gradients, bucketed": (2, 2, {"gradient_averaging": {"strategy": "bucketed", "compression": "fp16"}}, "eager"),
    "synchronised batch norm": (2, 2, RESNET18 | {"sync_batch_norm": True}, "graph"),
    "split by throughput": (2, 2, {"data": {"split": "throughput"}}, "eager"),
}
NCCL_CANNOT = {  # name: changes; these use Gloo
    "two ranks on one GPU": {"launch": {"devices": ["cuda:0", "cuda:0"]}},
    "shards of two ranks on one GPU": {"launch": {"devices": ["cuda:0", "cuda:0"]}, "deterministic": {"shards": 3}},
    "a GPU and a CPU": {"launch": {"devices": ["cuda:0", "cpu"]}},
    "a GPU and a CPU, split by throughput": {"launch": {"devices": ["cuda:0", "cpu"]}, "data": {"split": "throughput"}},
}


@pytest.mark.parametrize("path", swept(PATHS, [
    "shards on three GPUs", "accumulation and clipping", "torchvision's augmentation", "clipping, ema, one_cycle and histograms",
    "bucketed", "class weights and bf16 gradients", "synchronised batch norm", "split by throughput"]))
def test_each_path_trains_as_requested(tmp_path, path):
    gpus, ranks, changes, execution = PATHS[path]
    result = train(tmp_path, merged(ONE_EPOCH, changes), processes=ranks, variables=fake_gpus(gpus, report=tmp_path / "report"))
    summary = result.summary()
    assert summary["status"] == "finished" and summary["execution"] == execution, summary
    assert summary["world_size"] == ranks and (ranks == 1 or summary["backend"] == "nccl")
    assert ranks == 1 or devices_of_ranks(result) == {rank: rank for rank in range(ranks)}
    for report in reports(tmp_path / "report"):
        assert bool(report["replays"]) == (execution == "graph")
        assert ranks == 1 or report["kernels"]["ncclAllReduce"] > 0
        # Work on a second stream inside a graph would add an edge at each end.
        assert [graph["streams"] for graph in report["graphs"]] == ([1] if execution == "graph" else [])


@pytest.mark.parametrize("path", swept(NCCL_CANNOT, ["two ranks on one GPU", "a GPU and a CPU"]))
def test_ranks_that_nccl_cannot_connect_use_gloo_and_eager_steps(tmp_path, path):
    changes = {"device": "auto"} | NCCL_CANNOT[path]
    summary = train(tmp_path, merged(ONE_EPOCH, changes), processes=2, variables=fake_gpus(1)).summary()
    assert (summary["backend"], summary["execution"], summary["world_size"]) == ("gloo", "eager", 2)


def on_separate_gpus(folder, changes, visible, expect=0):
    """Runs ranks as another launcher does, each with its own CUDA_VISIBLE_DEVICES, whose GPUs it numbers from 0."""
    port = free_port()
    with at_once(worker(folder, rank, port, merged(ONE_EPOCH, changes), world_size=len(visible),
                        variables=fake_gpus(4) | {"CUDA_VISIBLE_DEVICES": gpus}) for rank, gpus in enumerate(visible)) as ranks:
        for rank in ranks:
            assert rank.wait() == expect, rank.stderr
    return ranks


VISIBLE = [  # CUDA_VISIBLE_DEVICES of each rank, device of each rank
    (("1", "0"), {0: 1, 1: 0}),                            # --gpus-per-task=1, --gpu-bind=single:1
    (("0,1", "2,3", "0,1", "2,3"), {0: 0, 1: 2, 2: 1, 3: 3}),  # --gpu-bind=closest, tasks alternate between two sockets
    (("2,3", "3,2"), {0: 2, 1: 3}),
]


@pytest.mark.parametrize("visible, devices", swept(VISIBLE, VISIBLE[:2]))
def test_ranks_that_see_different_gpus_under_the_same_index_use_nccl(tmp_path, visible, devices):
    ranks = on_separate_gpus(tmp_path, {"backend": "nccl"}, visible)
    assert ranks[0].run_folder.summary()["backend"] == "nccl"
    assert devices_in(rank.stderr for rank in ranks) == devices


def test_ranks_that_are_each_the_only_local_one_use_different_gpus(tmp_path):
    """Without LOCAL_RANK, each rank would otherwise take GPU 0 of the host that they share."""
    port = free_port()
    alone = fake_gpus(2) | {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    with at_once(worker(tmp_path, rank, port, ONE_EPOCH, variables=alone) for rank in range(2)) as ranks:
        for rank in ranks:
            assert rank.wait() == 0, rank.stderr
    assert ranks[0].run_folder.summary()["backend"] == "nccl"
    assert devices_in(rank.stderr for rank in ranks) == {0: 0, 1: 1}


def test_ranks_that_share_one_gpu_use_gloo_whatever_its_index(tmp_path):
    ranks = on_separate_gpus(tmp_path, {"launch": {"devices": ["cuda:1", "cuda:0"]}}, ("0,1", "1,0"))
    assert ranks[0].run_folder.summary()["backend"] == "gloo"
    (tmp_path / "refused").mkdir()
    for failed in on_separate_gpus(tmp_path / "refused", {"backend": "nccl"}, ("1", "1"), expect=2):
        assert "ranks 0 and 1 share one" in failed.stderr, failed.stderr


def test_cuda_graphs_on_is_refused_if_the_step_cannot_be_captured(tmp_path):
    changes = merged(ONE_EPOCH, {"cuda_graphs": "on", "gradient_averaging": {"strategy": "bucketed"}})
    failed = train(tmp_path, changes, processes=2, variables=fake_gpus(2), expect=2)
    assert "cannot be captured" in failed.stderr and "NCCL" in failed.stderr


def test_encoded_images_reach_the_gpu(tmp_path):
    images = tmp_path / "images"
    idx = write_idx_folder(tmp_path / "idx", *mnist_bytes("train", 300))
    run("convert", "--from", f"idx:{idx}", "--to", f"image-folder:{images}", expect=0)
    waits = []
    for decode, batch_size in (("once", 50), ("stream", 50), ("stream", 25)):
        report = tmp_path / f"report-{len(waits)}"
        data = own_data("image-folder", images / "train", images / "test", decode=decode, channels=1)
        result = train(tmp_path, merged(ONE_EPOCH, {"batch_size": batch_size, "data": data}), output=f"run-{len(waits)}",
                       variables=fake_gpus(1, report=report))
        assert result.summary()["execution"] == "graph"
        waits.append(reports(report)[0]["pageable_copies"])
    # Streaming samples to the GPU does not block the host: 6 more steps add no blocking copies, except of losses read after each step.
    assert waits[2] - waits[1] <= 8, waits


def test_preview_and_evaluate_use_the_gpu(tmp_path):
    result = train(tmp_path, ONE_EPOCH, variables=fake_gpus(2))
    config = write_config(tmp_path, ONE_EPOCH, "again.json")
    for number, command in enumerate((
        ["preview", "--config", config, "--output", tmp_path / "preview.png"],
        ["evaluate", "--config", config, "--checkpoint", result.path / "model.pt", "--nproc-per-node", 2],
    )):
        run(*command, folder=tmp_path, variables=fake_gpus(2, report=tmp_path / f"report-{number}"), expect=0)
        assert sum(report["copies"] > 0 for report in reports(tmp_path / f"report-{number}")) == 2


def test_doctor_shows_the_gpus_the_driver_version_and_a_missing_gpu(tmp_path):
    text = run("doctor", "--set", 'launch.devices=["cpu","cuda:9"]', folder=tmp_path, variables=fake_gpus(2), expect=1).stdout
    assert 'launch.devices names "cuda:9"' in text, text
    assert "GPU 0" in text and "GPU 1" in text and "NCCL" in text, text
    assert re.search(r"NVIDIA \d[\d.]*, for CUDA up to 13", text), text


def test_a_run_resumes_on_a_different_number_of_gpus(tmp_path):
    train(tmp_path, ONE_EPOCH, processes=2, variables=fake_gpus(2))
    resumed = train(tmp_path, ON_GPU | {"epochs": 2}, "--resume", "auto", processes=1, variables=fake_gpus(1))
    assert resumed.summary()["steps"] == 2 * STEPS
