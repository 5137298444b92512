"""Helpers for the PyTorch baselines: models, in-memory data, and output in the format the benchmark parses."""

import torch
import torch.distributed as dist
from flags import limit, peak_memory_bytes, print_event, read_raw
from torch import nn
from torch.nn import functional
from torch_models import MODELS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def make_model(arguments):
    """Returns the model with the same initialisation as in mnist-train's configs."""
    model = MODELS[arguments.model]()
    for parameter in model.parameters():
        if arguments.model == "resnet18" and parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.01)
        elif arguments.model == "lenet":
            nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    return model


def loss_function(arguments):
    return functional.nll_loss if arguments.model == "net" else functional.cross_entropy


def autocast(arguments):
    """Returns the usual autocast for bf16, which keeps weights in fp32."""
    return torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.precision == "bf16")


def read_set(arguments, part, device):
    """Returns uint8 images [N,C,H,W] and labels of a part, up to its limit."""
    images, labels = (torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in read_raw(arguments, part))
    count = limit(arguments, part) or len(labels)
    images = images.reshape(-1, 1, 28, 28)[:count]
    if arguments.image_size != 28:
        images = functional.interpolate(images, size=(arguments.image_size,) * 2, mode="bilinear")
    return images.expand(-1, arguments.channels, -1, -1).to(device), labels[:count].long().to(device)


def normalize(arguments, images, dtype):
    scaled = images.to(torch.float32).mul_(1 / (255 * arguments.std)).sub_(arguments.mean / arguments.std)
    return scaled.to(dtype).contiguous(memory_format=torch.channels_last)


def rank_and_size():
    """Returns the rank of this process and the world size."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def say(event, **fields):
    if rank_and_size()[0] == 0:
        print_event(event, **fields)


def all_sum(tensor):
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def mean_of_all(sum_and_count):
    """All-reduces (sum, count) and returns the global mean, sum / count. Collective."""
    total, count = all_sum(sum_and_count).tolist()
    return total / count


def say_end():
    """Prints the peak memory of the largest process. Collective."""
    peak = torch.tensor([peak_memory_bytes()], dtype=torch.int64)
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    say("end", peak_memory_bytes=peak.item())
