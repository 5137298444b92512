"""`class_weights` agrees with torch.nn.CrossEntropyLoss(weight), however a step is split."""

import numpy
import pytest
from pictures import write_class_folders
from support import averaging, import_torch, merged, mnist_bytes, own_data, swept, train, write_idx_folder

torch = import_torch()
functional = torch.nn.functional

from torch_models import shuffled, training  # noqa: E402  (needs torch)

CLASSES = 4
SAMPLES = 250
EPOCHS = 5  # 4 steps each; the last batch is smaller
BATCH = 64
SEED = 3
RATE = 0.05
WEIGHTS = {"0": 0.4, "2": 3, "3": 0}
MIXUP = {"name": "mixup", "weight": 0.3}
NORMALIZE = {"name": "normalize", "mean": 0, "std": 1}  # before mixup, so that it mixes floats
RUN = {
    "epochs": EPOCHS, "batch_size": BATCH, "seed": SEED, "sgd_momentum": 0, "learning_rate": RATE, "deterministic": False,
    "checkpoint": {"every_epochs": 0, "keep_best": False},
    "model": {"layers": ["flatten", {"name": "linear", "out_features": 24}, "tanh", {"name": "linear", "out_features": "classes"}]},
}
CASES = {
    "plain": {},
    "balanced": {"class_weights": "balanced"},
    "given": {"class_weights": WEIGHTS},
    "smoothed": {"class_weights": WEIGHTS, "label_smoothing": 0.1},
    "mixed": {"class_weights": "balanced", "label_smoothing": 0.1, "data": {"augment": [NORMALIZE, MIXUP]}},
    "mixed across shards": {"class_weights": "balanced", "deterministic": {"shards": 5},
                            "data": {"augment": [NORMALIZE, MIXUP | {"scope": "global"}]}},
    "accumulated": {"class_weights": "balanced", "batch_size": BATCH // 2, "gradient_accumulation_steps": 2},
    "sharded": {"class_weights": WEIGHTS, "deterministic": {"shards": 5}},
    "torchscript": {"class_weights": "balanced", "torchscript": True},
}
RUNS = [("plain", 1, "auto"), ("balanced", 3, "bucketed"), ("given", 2, "flat"), ("smoothed", 3, "shared_memory"), ("mixed", 3, "flat"),
        ("mixed across shards", 2, "shared_memory"), ("accumulated", 2, "bucketed"), ("sharded", 3, "flat"),
        ("torchscript", 2, "shared_memory")]
QUICK = ("balanced", "given", "smoothed", "mixed across shards", "sharded", "torchscript")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Returns (data folder, images, labels) of an imbalanced subset of MNIST: 40 % zeros, 8 % threes."""
    images, labels = mnist_bytes("train")
    chosen = numpy.concatenate([numpy.flatnonzero(labels == label)[:count] for label, count in enumerate((100, 80, 50, 20))])
    chosen = numpy.random.default_rng(1).permutation(chosen)
    folder = write_idx_folder(tmp_path_factory.mktemp("pictures") / "data", images[chosen], labels[chosen])
    return folder, images[chosen], labels[chosen]


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 24), torch.nn.Tanh(), torch.nn.Linear(24, CLASSES))

    def forward(self, images):
        return self.layers(images)


def configure(folder, data, case):
    """Returns the config of a case, with the initial weights of Network."""
    changes = dict(CASES[case])
    if changes.pop("torchscript", False):
        torch.jit.script(Network()).save(str(folder / "model.ts"))
        model = {"torchscript": str(folder / "model.ts")}
        return merged(merged(RUN | {"model": model}, {"data": own_data("idx", data)}), changes)
    weights = folder / "initial.pt"
    torch.save({key.removeprefix("layers."): tensor for key, tensor in Network().state_dict().items()}, weights)
    return merged(merged(RUN, {"model": {"weights": str(weights)}, "data": own_data("idx", data)}), changes)


def weights_of(setting, labels):
    if setting == "balanced":
        return len(labels) / (CLASSES * numpy.bincount(labels))
    return numpy.array([(setting or {}).get(str(label), 1) for label in range(CLASSES)])


def mixed_with(config, own, following):
    """Returns the mixup partner of each sample and the sample's own mixing weight. `following`: the partners unless the scope is global."""
    other, share = own.clone(), torch.ones(len(own), dtype=torch.float64)
    mixup = config["data"].get("augment", [None, {"weight": 1}])[1]
    if mixup.get("scope") != "global":
        return following, share * mixup["weight"]
    shards = numpy.array_split(numpy.arange(len(own)), config["deterministic"]["shards"])
    for shard, partners in zip(shards, shards[1:] + shards[:1]):
        pairs = min(len(shard), len(partners))
        other[shard[:pairs]] = own[partners[:pairs]]
        share[shard[:pairs]] = mixup["weight"]
    return other, share


def steps_of_pytorch(config, images, labels, order_of=lambda epoch: shuffled(SAMPLES, SEED + epoch)):
    """Returns the fp64 loss of every step: from torch.nn.CrossEntropyLoss or, for mixed samples, from its definition."""
    model = Network().double()
    weight = torch.tensor(weights_of(config.get("class_weights"), labels), dtype=torch.float64)
    options = {"weight": weight, "label_smoothing": config.get("label_smoothing", 0)}
    pixels = torch.from_numpy(images).double()[:, None] / 255
    targets = torch.from_numpy(labels.astype(numpy.int64))

    def batches():
        for epoch in range(EPOCHS):
            order = order_of(epoch)
            for own, following in zip(order.split(BATCH), order.roll(-1).split(BATCH)):
                other, share = mixed_with(config, own, following)
                mixed = share.view(-1, 1, 1, 1)
                yield mixed * pixels[own] + (1 - mixed) * pixels[other], (targets[own], targets[other], share)

    def loss(logits, labels):
        own, other, share = labels
        if "augment" not in config["data"]:
            return functional.cross_entropy(logits, own, **options)
        sums = [functional.cross_entropy(logits, each, reduction="none", **options) for each in (own, other)]
        return (share * sums[0] + (1 - share) * sums[1]).sum() / (share * weight[own] + (1 - share) * weight[other]).sum()

    return list(training(model, torch.optim.SGD(model.parameters(), lr=RATE), batches(), loss))


@pytest.mark.parametrize("case, processes, strategy", swept(RUNS, [run for run in RUNS if run[0] in QUICK]))
def test_twenty_losses_match_pytorch(tmp_path, pictures, case, processes, strategy):
    folder, images, labels = pictures
    config = configure(tmp_path, folder, case) | averaging(strategy)
    trained = train(tmp_path, config, processes=processes)
    assert processes == 1 or trained.summary()["gradient_averaging"] == strategy
    expected = steps_of_pytorch(config, images, labels)
    assert len(expected) == 20
    assert trained.losses() == pytest.approx(expected, rel=1e-6)
    sizes = numpy.array([min(BATCH, SAMPLES - begin) for begin in range(0, SAMPLES, BATCH)])
    by_epoch = numpy.reshape(expected, (EPOCHS, -1)) @ sizes / SAMPLES
    assert [epoch["train_loss"] for epoch in trained.epochs()] == pytest.approx(by_epoch, rel=1e-6)


def test_the_cases_differ_by_more_than_the_tolerance(tmp_path, pictures):
    folder, images, labels = pictures
    cases = [case for case in CASES if case not in ("accumulated", "sharded", "torchscript")]  # equal to another case by design
    losses = [steps_of_pytorch(configure(tmp_path, folder, case), images, labels) for case in cases]
    for index, one in enumerate(losses):
        assert all(other[3] != pytest.approx(one[3], rel=1e-4) for other in losses[:index])


def test_processes_with_separate_training_sets_normalise_by_the_total_weight(tmp_path, pictures):
    folder, images, labels = pictures
    parts = [slice(0, 180), slice(180, SAMPLES)]
    own = [str(write_idx_folder(tmp_path / f"set-{rank}", images[part], labels[part])) for rank, part in enumerate(parts)]
    config = configure(tmp_path, folder, "balanced")
    config = merged(config, {"data": {"train": None, "train_per_process": own}})

    def order_of(epoch):
        """Returns the sample order: positions go round-robin to the processes that have samples left."""
        left = [list(part.start + shuffled(part.stop - part.start, SEED + rank * 1000003 + epoch).numpy())
                for rank, part in enumerate(parts)]
        order = []
        while any(left):
            order += [samples.pop(0) for samples in left if samples]
        return torch.tensor(order)

    losses = train(tmp_path, config, processes=2).losses()
    assert losses == pytest.approx(steps_of_pytorch(config, images, labels, order_of), rel=1e-6)


def test_bf16_losses_are_close_to_pytorch(tmp_path, pictures):
    folder, images, labels = pictures
    config = configure(tmp_path, folder, "mixed")
    losses = train(tmp_path, config | {"precision": "bf16"}, processes=2).losses()
    assert losses == pytest.approx(steps_of_pytorch(config, images, labels), rel=1e-2)


def test_evaluation_is_unweighted(tmp_path, pictures):
    still = {"learning_rate": 0, "epochs": 1}
    weighted, plain = (train(tmp_path, configure(tmp_path, pictures[0], case) | still, output=case).epochs()[0]
                       for case in ("balanced", "plain"))
    for key in ("test_loss", "test_accuracy", "train_accuracy"):
        assert weighted[key] == plain[key]
    assert weighted["train_loss"] != pytest.approx(plain["train_loss"], rel=1e-3)


def test_balanced_weights_do_not_count_held_out_samples(tmp_path):
    images, _ = mnist_bytes("t10k", 30)
    write_class_folders(tmp_path / "pictures", {"ant": images[:20], "bee": images[20:]})
    data = own_data("image-folder", tmp_path / "pictures") | {"test": 0.3, "validation": 0.2}
    config = {"epochs": 2, "batch_size": 5, "model": {"name": "mlp", "hidden": [8]}, "data": data}
    balanced = train(tmp_path, config | {"class_weights": "balanced"}, output="balanced")
    counts = {row["name"]: row["train"] for row in balanced.read_json("dataset.json")["classes"]}
    assert counts == {"ant": 11, "bee": 6}
    given = {name: sum(counts.values()) / (2 * count) for name, count in counts.items()}
    assert train(tmp_path, config | {"class_weights": given}, output="given").losses() == pytest.approx(balanced.losses(), rel=1e-6)
