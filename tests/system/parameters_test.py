"""`parameters` trains like PyTorch's parameter groups, however a step is split; frozen layers do not change."""

import fnmatch
import functools

import numpy
import pytest
from fake_gpus import ON_GPU, fake_gpus, needs_fake_gpus, reports
from support import (averaging, import_torch, merged, mnist_bytes, own_data, printed_json, run, swept, train, write_config,
                     write_idx_folder)

torch = import_torch()
from torch_models import shuffled, training  # noqa: E402  (needs torch)
from torch_networks import torch_network  # noqa: E402

nn = torch.nn
SAMPLES, BATCH, EPOCHS, SEED = 300, 64, 4, 4  # 20 steps; the last batch of each epoch is smaller
LAYERS = [
    {"name": "conv2d", "out_channels": 6, "kernel_size": 5, "bias": False, "as": "conv1"}, {"name": "batch_norm", "as": "bn1"}, "relu",
    {"name": "max_pool2d", "kernel_size": 2},
    {"name": "conv2d", "out_channels": 8, "kernel_size": 3, "as": "conv2"}, "relu", {"name": "max_pool2d", "kernel_size": 2},
    "flatten", {"name": "linear", "out_features": 24, "as": "fc1"}, "tanh",
    {"name": "linear", "out_features": "classes", "as": "fc2"}]
RUN = {
    "epochs": EPOCHS, "batch_size": BATCH, "seed": SEED, "learning_rate": 0.05, "sgd_momentum": 0, "weight_decay": 0.01,
    "deterministic": False, "sync_batch_norm": True, "checkpoint": {"every_epochs": 0, "keep_best": False},
    "report": {"html": False, "tensorboard": False}, "model": {"layers": LAYERS}}
GROUPS = [{"match": "conv*", "learning_rate_factor": 0.1}, {"match": ["*.bias", "bn1.*"], "weight_decay": 0},
          {"match": "fc2.bias", "learning_rate_factor": 3, "weight_decay": 0.1}]
BACKBONE = [{"match": ["conv*", "bn1.*"], "frozen": True}, {"match": "fc2.*", "learning_rate_factor": 2}]
CASES = {
    "sgd": {"parameters": GROUPS},
    "nesterov": {"parameters": GROUPS, "sgd_momentum": 0.9, "nesterov": True, "learning_rate": 0.01},
    "adam": {"parameters": GROUPS, "optimizer": "adam", "learning_rate": 0.003},
    "adamw": {"parameters": GROUPS, "optimizer": "adamw", "learning_rate": 0.003, "schedule": {"name": "step", "step_epochs": 1, "gamma": 0.5}},
    "backbone": {"parameters": BACKBONE, "optimizer": "adamw", "learning_rate": 0.003},
    "clipped": {"parameters": BACKBONE, "max_gradient_norm": 0.3, "sgd_momentum": 0.5},
    "between": {"parameters": [{"match": ["conv2.*", "bn1.*", "fc1.weight"], "frozen": True}]},
    "biases": {"parameters": [{"match": "*", "frozen": True}, {"match": ["*.bias", "fc2.*"], "frozen": False}]},
    "accumulated": {"parameters": BACKBONE, "batch_size": BATCH // 2, "gradient_accumulation_steps": 2},
    "sharded": {"parameters": GROUPS[1:] + BACKBONE, "sgd_momentum": 0.5, "sync_batch_norm": False, "deterministic": {"shards": 5}},
}
RUNS = [("sgd", 1, "auto"), ("nesterov", 3, "bucketed"), ("adam", 2, "shared_memory"), ("adamw", 3, "flat"), ("backbone", 2, "bucketed"),
        ("clipped", 3, "shared_memory"), ("between", 2, "flat"), ("biases", 1, "auto"), ("accumulated", 2, "shared_memory"),
        ("sharded", 3, "flat")]
QUICK = ("sgd", "adam", "backbone", "clipped", "sharded")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    images, labels = (array.copy() for array in mnist_bytes("train", SAMPLES))
    return write_idx_folder(tmp_path_factory.mktemp("digits") / "data", images, labels), images, labels


def network():
    """Returns a network whose running statistics differ from their initial values."""
    torch.manual_seed(9)
    model = torch_network(LAYERS, (1, 28, 28))
    model.bn1.running_mean += torch.randn(6) * 0.1
    model.bn1.running_var *= 0.5
    return model


def configure(folder, data, changes):
    torch.save(network().state_dict(), folder / "initial.pt")
    return merged(merged(RUN, {"model": {"weights": str(folder / "initial.pt")}, "data": own_data("idx", data, limit_test=60)}), changes)


def settings_of(config, name):
    settings = {"learning_rate_factor": 1, "weight_decay": config["weight_decay"], "frozen": False}
    for entry in config["parameters"]:
        globs = entry["match"] if isinstance(entry["match"], list) else [entry["match"]]
        if any(fnmatch.fnmatchcase(name, glob) for glob in globs):
            settings |= {key: value for key, value in entry.items() if key != "match"}
    return settings


def optimizer_of(config, model):
    groups = []
    for name, parameter in model.named_parameters():
        settings = settings_of(config, name)
        parameter.requires_grad_(not settings["frozen"])
        if not settings["frozen"]:
            groups.append({"params": [parameter], "lr": config["learning_rate"] * settings["learning_rate_factor"],
                           "weight_decay": settings["weight_decay"]})
    if config.get("optimizer", "sgd") == "sgd":
        return torch.optim.SGD(groups, momentum=config["sgd_momentum"], nesterov=config.get("nesterov", False))
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config["optimizer"]](groups)


def steps_of_pytorch(config, images, labels):
    """Returns the fp64 losses and the trained network."""
    model = network().double()
    optimizer = optimizer_of(config, model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, config.get("schedule", {}).get("gamma", 1))
    model.bn1.train(any(parameter.requires_grad for parameter in model.bn1.parameters()))
    pixels, targets = torch.from_numpy(images).double()[:, None] / 255, torch.from_numpy(labels.astype(numpy.int64))

    def batches():
        for epoch in range(EPOCHS):
            for own in shuffled(SAMPLES, SEED + epoch).split(BATCH):
                yield pixels[own], targets[own]
            schedule.step()

    def clip():
        nn.utils.clip_grad_norm_(model.parameters(), config.get("max_gradient_norm", float("inf")))

    return list(training(model, optimizer, batches(), before_update=clip)), model


@pytest.fixture(scope="module")
def pytorch(digits):
    """Returns a cached function from a case to its losses and network."""
    return functools.cache(lambda case: steps_of_pytorch(RUN | CASES[case], *digits[1:]))


def frozen_names(config):
    return [name for name, _ in network().named_parameters() if settings_of(config, name)["frozen"]]


def assert_frozen_are_kept(config, weights):
    initial = network().state_dict()
    names = frozen_names(config)
    if {"bn1.weight", "bn1.bias"} <= set(names):
        names += ["bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"]
    for name in names:
        assert numpy.array_equal(weights[name], initial[name].numpy()), name
    for name in set(initial) - set(names):
        assert not numpy.array_equal(weights[name], initial[name].numpy()), name


@pytest.mark.parametrize("case, processes, strategy", swept(RUNS, [run for run in RUNS if run[0] in QUICK]))
def test_twenty_losses_match_pytorch(tmp_path, digits, pytorch, case, processes, strategy):
    config = configure(tmp_path, digits[0], CASES[case] | averaging(strategy))
    trained = train(tmp_path, config, processes=processes)
    assert processes == 1 or trained.summary()["gradient_averaging"] == strategy
    expected, model = pytorch(case)
    assert len(expected) == 20 and trained.losses() == pytest.approx(expected, rel=1e-5)
    weights = trained.weights()
    for name, tensor in model.state_dict().items():
        assert weights[name] == pytest.approx(tensor.numpy(), abs=2e-5), name
    assert_frozen_are_kept(config, weights)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert trained.summary()["parameters"] == sum(sizes.values())
    if frozen := frozen_names(config):
        assert (f"frozen: {len(frozen)} of {len(sizes)} tensors, {sum(sizes[name] for name in frozen):,} of {sum(sizes.values()):,} "
                "parameters (") in trained.stderr


def test_the_cases_have_different_losses(digits, pytorch):
    runs = [pytorch(case)[0] for case in ("sgd", "nesterov", "adam", "adamw", "backbone", "clipped", "between")]
    runs.append(steps_of_pytorch(RUN | {"parameters": []}, *digits[1:])[0])
    for index, one in enumerate(runs):
        assert all(other[19] != pytest.approx(one[19], rel=1e-3) for other in runs[:index])


@pytest.mark.parametrize("case, processes", [("backbone", 2), ("between", 1)])
def test_bf16_losses_are_close_and_frozen_weights_stay_fp32(tmp_path, digits, pytorch, case, processes):
    config = configure(tmp_path, digits[0], CASES[case] | {"precision": "bf16"})
    trained = train(tmp_path, config, processes=processes)
    assert trained.losses() == pytest.approx(pytorch(case)[0], rel=3e-2)
    assert_frozen_are_kept(config, trained.weights())


def test_an_ema_model_keeps_frozen_weights(tmp_path, digits, pytorch):
    config = configure(tmp_path, digits[0], CASES["backbone"] | {"ema": {"decay": 0.9}})
    averaged = train(tmp_path, config, processes=2)
    assert averaged.losses() == pytest.approx(pytorch("backbone")[0], rel=1e-5)
    plain = train(tmp_path, config | {"ema": None}, processes=2, output="plain")
    assert_frozen_are_kept(config, averaged.weights())
    distance = abs(averaged.weights()["fc2.weight"] - plain.weights()["fc2.weight"]).max()
    assert 1e-4 < distance < abs(plain.weights()["fc2.weight"] - network().fc2.weight.detach().numpy()).max()


def test_a_different_list_of_parameters_is_refused_on_resume(tmp_path, digits):
    config = configure(tmp_path, digits[0], CASES["backbone"] | {"checkpoint": {"every_steps": 6}, "max_steps": 6})
    train(tmp_path, config)
    others = config | {"parameters": BACKBONE[:1], "max_steps": 12}
    refused = train(tmp_path, others, "--resume", "auto", expect=5).stderr
    assert "trained with different entries in the config's parameters list" in refused and "--set model.weights=" in refused


def test_dropout_in_a_frozen_backbone_stays_active(tmp_path, digits):
    def trained(p):
        layers = LAYERS[:8] + [{"name": "dropout", "p": p, "as": "drop"}] + LAYERS[8:]
        config = configure(tmp_path, digits[0], {"parameters": BACKBONE + [{"match": "fc1.*", "frozen": True}], "max_steps": 2,
                                                 "optimizer": "adam", "model": {"layers": layers}})
        return train(tmp_path, config, output=f"drop{p}").losses()

    assert abs(trained(0.5)[0] - trained(0)[0]) > 1e-3


def test_globs_are_checked_for_images_of_any_size(tmp_path):
    data = own_data("image-folder", tmp_path / "none", size=64)
    config = write_config(tmp_path, {"data": data, "model": {"name": "torchvision-resnet18"}, "parameters": [{"match": "layer5.*", "frozen": True}]})
    assert '"layer5.*" matches no parameter' in run("--config", config, "--dry-run", expect=2).stderr


def test_describe_shows_how_each_tensor_is_trained(tmp_path):
    config = write_config(tmp_path, {"model": {"layers": LAYERS}, "parameters": GROUPS + BACKBONE[:1], "weight_decay": 0.01})
    rows = {line.split()[0]: line for line in run("describe", "--config", config, expect=0).stdout.splitlines()}
    assert rows["conv1"].endswith("  weight: frozen") and rows["bn1"].endswith("  weight, bias: frozen")
    assert rows["fc1"].endswith("  weight: rate 0.01, decay 0.01; bias: rate 0.01, decay 0")
    assert rows["fc2"].endswith("  weight: rate 0.01, decay 0.01; bias: rate 0.03, decay 0.1")
    described = printed_json("describe", "--config", config, "--json")
    tensors = [tensor for module in described["modules"] for tensor in module["tensors"]]
    assert [tensor["name"] for tensor in tensors] == [name for name, _ in network().named_parameters()]
    assert tensors[0] == {"name": "conv1.weight", "frozen": True}
    assert tensors[-1] == {"name": "fc2.bias", "frozen": False, "learning_rate": pytest.approx(0.03), "weight_decay": 0.1}


class Script(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop, self.fc = nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.Dropout(0.2), nn.Linear(4 * 36, 10)

    def forward(self, images):
        return self.fc(self.drop(nn.functional.max_pool2d(self.norm(self.conv(images)).relu(), 4).flatten(1)))


def with_script(folder, data, script, **changes):
    script.save(str(folder / "model.ts"))
    return merged(RUN, {"model": {"layers": None, "torchscript": str(folder / "model.ts")}, "data": own_data("idx", data),
                        "sync_batch_norm": False, **changes})


def test_frozen_parameters_of_a_torchscript_network_stay_frozen(tmp_path, digits):
    model = Script()
    for part in (model.conv, model.norm):
        part.requires_grad_(False)
    config = with_script(tmp_path, digits[0], torch.jit.script(model), precision="auto")
    before = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    trained = train(tmp_path, config, processes=2)
    assert trained.summary()["precision"] == "fp32"
    kept = {name for name, tensor in trained.weights().items() if numpy.array_equal(tensor, before[name])}
    assert kept == {name for name in before if name.startswith(("conv", "norm"))}
    rows = run("describe", "--config", write_config(tmp_path, config), expect=0).stdout
    assert "weight, bias: frozen" in rows
    thawed = train(tmp_path, config | {"parameters": [{"match": "norm.*", "frozen": False}]}, output="thawed")
    assert {name for name, tensor in thawed.weights().items() if numpy.array_equal(tensor, before[name])} == {"conv.weight", "conv.bias"}
    # The last parameter belongs to the PReLU, which is not a head.
    script = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.PReLU(1)))
    head = with_script(tmp_path, digits[0], script, parameters=[{"match": "head", "learning_rate_factor": 2}])
    refused = run("describe", "--config", write_config(tmp_path, head), expect=2).stderr
    assert '/parameters: "head" is the module of the last parameter, 2.weight [1], which does not have 10 outputs' in refused


@pytest.mark.parametrize("training", [True, False])
def test_a_trace_in_training_mode_causes_a_warning(tmp_path, digits, training):
    model = Script().train(training)
    trace = torch.jit.trace(model, torch.zeros(2, 1, 28, 28), check_trace=False)
    stderr = train(tmp_path, with_script(tmp_path, digits[0], trace, max_steps=1), processes=2).stderr
    assert stderr.count("these operations ignore model.eval(): batch_norm, dropout; ") == (1 if training else 0)
    script = with_script(tmp_path, digits[0], torch.jit.script(Script().train(training)), max_steps=1)
    assert "ignore model.eval()" not in train(tmp_path, script, output="script").stderr


@needs_fake_gpus
@pytest.mark.parametrize("optimizer, changes", [("sgd", {}), ("adamw", {"gpu_kernels": "off"}),
                                                ("adamw", {"ema": {"decay": 0.9}, "max_gradient_norm": 1})])
def test_captured_steps_update_each_span(tmp_path, optimizer, changes):
    def kernels(parameters, output):
        report = tmp_path / f"report-{output}"
        folder = train(tmp_path, ON_GPU | {"precision": "bf16", "epochs": 1, "optimizer": optimizer, "parameters": parameters} | changes,
                       output=output, variables=fake_gpus(1, report=report))
        summary = folder.summary()
        assert summary["status"] == "finished" and summary["execution"] == "graph"
        (found,) = reports(report)
        return sum(count for name, count in found["kernels"].items() if name.startswith("update_by_")), folder

    one, _ = kernels([], "one")
    several, _ = kernels([{"match": "*.bias", "weight_decay": 0.1, "learning_rate_factor": 2}, {"match": "conv1.*", "frozen": True}], "several")
    if "gpu_kernels" in changes:
        assert one == several == 0
    else:
        assert several == 2 * one > 0
