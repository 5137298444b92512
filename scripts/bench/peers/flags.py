"""Helpers for all peers, including those without torch: flags, IDX files, and output in the format the benchmark parses."""

import argparse
import gzip
import json
import pathlib
import resource
import time


def parse_arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="folder in torchvision's layout")
    parser.add_argument("--dataset", choices=("mnist", "fashion-mnist"), default="mnist")
    parser.add_argument("--model", default="net", help="model from torch_models.py")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128, help="summed over all processes")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--mean", type=float, default=0.1307)
    parser.add_argument("--std", type=float, default=0.3081)
    parser.add_argument("--limit", type=int, default=0, help="number of training samples, 0: all")
    parser.add_argument("--test-limit", type=int, default=0, help="number of test images, 0: all")
    parser.add_argument("--image-size", type=int, default=28, help="resize images to this size")
    parser.add_argument("--channels", type=int, default=1, help="number of copies of the gray channel")
    parser.add_argument("--processes", type=int, default=2, help="number of processes, for scripts that start them")
    parser.add_argument("--weights", help="initial weights (.npz), for scripts that cannot use PyTorch's init")
    return parser.parse_args()


def read_idx(folder, name, header):
    path = next(path for path in (folder / name, folder / f"{name}.gz") if path.exists())
    return (gzip.open(path) if path.suffix == ".gz" else open(path, "rb")).read()[header:]


def read_raw(arguments, part):
    """Returns the image bytes and the label bytes of a part (train, t10k)."""
    folder = pathlib.Path(arguments.data) / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[arguments.dataset] / "raw"
    return read_idx(folder, f"{part}-images-idx3-ubyte", 16), read_idx(folder, f"{part}-labels-idx1-ubyte", 8)


def limit(arguments, part):
    """Returns the number of images of a part (train, t10k) to use, 0: all."""
    return arguments.limit if part == "train" else arguments.test_limit


def batch_sizes(arguments, samples):
    """Returns the distinct batch sizes in an epoch: those of full batches and of the last batch."""
    return sorted({min(arguments.batch_size, samples), samples % arguments.batch_size or arguments.batch_size})


def print_event(event, **fields):
    print(json.dumps({"event": event, "time": time.time(), **fields}), flush=True)


def peak_memory_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
