"""What both Python sides share: flags, the model, and the lines that the benchmark reads."""

import argparse
import json
import resource
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch_models import LeNet, Mlp, Net, resnet18

MODELS = {"net": Net, "mlp": Mlp, "lenet": LeNet, "resnet18": resnet18}


def parse_arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="a folder as torchvision lays it out")
    parser.add_argument("--dataset", choices=("mnist", "fashion-mnist"), default="mnist")
    parser.add_argument("--model", choices=MODELS, default="net")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128, help="all processes together")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--mean", type=float, default=0.1307)
    parser.add_argument("--std", type=float, default=0.3081)
    parser.add_argument("--limit", type=int, default=0, help="training samples, 0: all")
    parser.add_argument("--processes", type=int, default=2, help="where the script starts its own")
    return parser.parse_args()


def make_model(arguments):
    """With the first weights that mnist-train's configs give it."""
    model = MODELS[arguments.model]()
    for parameter in model.parameters():
        if arguments.model == "resnet18" and parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.01)
        elif arguments.model == "lenet":
            nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    return model


def loss_function(arguments):
    return functional.nll_loss if arguments.model == "net" else functional.cross_entropy


def say(event, **fields):
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps({"event": event, "time": time.time(), **fields}), flush=True)


def all_sum(tensor):
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def accuracy(correct):
    """From this process's (right, all), over all processes."""
    right, samples = all_sum(correct).tolist()
    return right / samples


def say_end():
    """The largest process's peak memory; every process calls it."""
    peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024], dtype=torch.int64)
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    say("end", peak_memory_bytes=peak.item())
