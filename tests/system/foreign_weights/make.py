"""Writes the weights files in this folder, in the formats of training scripts and libraries. Most need only the Python of the
tests. The others also need the libraries that wrote them, with PyTorch 2.11.0: lightning 2.6.6 (*.ckpt), timm 1.0.31
(timm.pth.tar) and safetensors 0.8.0 (*.safetensors).

usage: make.py FOLDER
"""

import argparse
import collections
import datetime
import enum
import pathlib
import random
import sys
import types

import numpy
import torch

EXTRAS = ("lightning", "timm", "safetensors")


class Tiny(torch.nn.Module):
    """The network whose weights the files contain."""

    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 3, 3)
        self.bn1 = torch.nn.BatchNorm2d(3)
        self.fc = torch.nn.Linear(3, classes)

    def forward(self, x):
        return self.fc(torch.relu(self.bn1(self.conv1(x))).mean((2, 3)))


LAYERS = [{"name": "conv2d", "out_channels": 3, "kernel_size": 3, "as": "conv1"}, {"name": "batch_norm", "as": "bn1"},
          "relu", "adaptive_avg_pool2d", "flatten", {"name": "linear", "out_features": "classes", "as": "fc"}]


def tiny():
    """Returns model and optimizer. All weights are distinct; the optimizer has taken one step with gradients of 0."""
    model = Tiny()
    with torch.no_grad():
        for number, (name, tensor) in enumerate(model.state_dict().items(), 1):
            if tensor.is_floating_point():
                count = torch.arange(1, tensor.numel() + 1)
                sign = 1 if name.startswith("bn1") else 1 - 2 * (count * count // 3 % 2)
                tensor.copy_((sign * count / (tensor.numel() + number)).view_as(tensor))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


class Mode(enum.Enum):
    BEST = "best"
    LAST = "last"


class Meter:
    """A class of the training script, which readers of its checkpoints do not have."""

    def __init__(self):
        self.history = [0.5, {"epoch": 1}]
        self.owner = self


class Scaled(torch.Tensor):
    """A tensor subclass, like those that libraries define."""


def objects():
    """Returns objects that scripts save along with the weights."""
    return {
        "args": argparse.Namespace(lr=0.1, data=pathlib.Path("/data"), resume=None, layers=[2, 2]),
        "best_acc1": numpy.float64(0.75), "epoch": numpy.int64(7), "history": numpy.arange(4.0),
        "rng": (random.getstate(), numpy.random.get_state(), torch.get_rng_state()),
        "saved": datetime.datetime(2024, 2, 29, 12, 30), "took": datetime.timedelta(hours=3),
        "mode": Mode.BEST, "tags": {"a", "b"}, "frozen": frozenset([1, 2]), "meter": Meter(), "large": 1 << 200,
        "bytes": b"\0" * 300, "buffer": bytearray(b"abc"), "complex": 1j, "dtype": torch.float16, "range": range(3),
        "device": torch.device("cpu"), "size": torch.Size([1, 2]), "default": collections.defaultdict(list, a=[1]),
        "counter": collections.Counter([30, 60, 60]), "deque": collections.deque([1.0], maxlen=5),
        "simple": types.SimpleNamespace(a=1), "text": "größe 🙂", "nested": [[{"deep": (1, (2, [3, {4: 5}]))}]],
    }


def reference_script(model, optimizer):
    """Returns a checkpoint like that of torchvision's references/classification/train.py."""
    schedulers = [torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=2),
                  torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 60, 60])]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, milestones=[2])
    average = torch.optim.swa_utils.AveragedModel(model)
    return {"model": torch.nn.DataParallel(model).module.state_dict(), "optimizer": optimizer.state_dict(),
            "lr_scheduler": scheduler.state_dict(), "epoch": 3, "args": objects()["args"],
            "model_ema": average.state_dict(), "scaler": torch.amp.GradScaler("cpu").state_dict()}


def by_torch(folder):
    model, optimizer = tiny()
    state = model.state_dict()
    torch.save(reference_script(model, optimizer), folder / "reference.pth")
    for protocol in (2, 4, 5):
        torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}} | objects(),
                   folder / f"objects{protocol}.pt", pickle_protocol=protocol)
    average = torch.optim.swa_utils.AveragedModel(torch.compile(model))  # n_averaged and module._orig_mod.…
    torch.save(average.state_dict(), folder / "averaged.pt")
    parameters = {name: torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    parameters["fc.bias"].note = "an attribute"
    parameters["fc.weight"] = parameters["fc.weight"].detach().as_subclass(Scaled)
    parameters |= {"epoch": 3, "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
                   "complex": torch.ones(2, dtype=torch.complex64), "small": torch.ones(2).to(torch.float8_e4m3fn),
                   "sparse": torch.eye(2).to_sparse(), "meta": torch.ones(2, device="meta")}
    torch.save(parameters, folder / "kinds.pt")
    wanted = dict(state)
    wanted["fc.weight"] = wanted["fc.weight"].to(torch.float8_e4m3fn)
    torch.save(wanted, folder / "float8.pt")
    torch.save(model, folder / "whole.pt")
    torch.save({"epoch": 1, "net": state}, folder / "net.pt")
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)


def by_lightning(folder):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, width=3, path=pathlib.Path("/data")):
            super().__init__()
            self.save_hyperparameters()
            self.model = tiny()[0]
            self.register_buffer("class_weight", torch.ones(10))

        def training_step(self, batch):
            return 0 * self.model(batch[0]).sum()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.0)
            return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])]

    module = Module()
    module.model.bn1.momentum = 0  # so that the step changes no weights
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2, 1, 12, 12)))
    trainer = lightning.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=True,
                                enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder / "lightning")
    trainer.fit(module, data)
    trainer.save_checkpoint(folder / "lightning.ckpt")


def by_timm(folder):
    from timm.utils import CheckpointSaver, ModelEmaV3
    model, optimizer = tiny()
    arguments = argparse.Namespace(model="tiny", opt="sgd", mean=None, output=pathlib.Path("/out"))
    saver = CheckpointSaver(model, optimizer, args=arguments, model_ema=ModelEmaV3(model), checkpoint_dir=str(folder),
                            recovery_dir=str(folder), max_history=1)
    saver.save_checkpoint(1, metric=numpy.float64(71.5))
    (folder / "last.pth.tar").rename(folder / "timm.pth.tar")
    for other in [*folder.glob("checkpoint-*.pth.tar"), *folder.glob("model_best*")]:
        other.unlink()


def by_safetensors(folder):
    from safetensors.torch import save_file
    state = tiny()[0].state_dict()
    save_file({f"model.{name}": tensor for name, tensor in state.items()}, folder / "prefixed.safetensors", {"format": "pt"})
    old = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    save_file(old | {"small": torch.ones(2).to(torch.float8_e4m3fn), "aux.weight": torch.ones(2, 2)}, folder / "extra.safetensors")


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    for write in (by_torch, by_lightning, by_timm, by_safetensors):
        write(target)
