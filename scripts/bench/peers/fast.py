"""The recipe of configs/mnist_fast.json in PyTorch: data in memory, bf16, channels_last, fused Adam, one process on all cores.

    fast.py IDX_FOLDER SEED     prints {"accuracy": N}
"""

import json
import pathlib
import sys

import torch
from flags import read_idx
from torch import nn

BATCH, SIDE, CROP, MAX_RATE, SMOOTHING = 192, 28, 24, 0.012, 0.1


def read(folder, part):
    """Returns normalised images [N,28,28] and labels."""
    names = (f"{part}-images-idx3-ubyte", 16), (f"{part}-labels-idx1-ubyte", 8)
    images, labels = (torch.frombuffer(bytearray(read_idx(folder, *name)), dtype=torch.uint8) for name in names)
    return images.view(-1, SIDE, SIDE).float().div_(255).sub_(0.1307).div_(0.3081).bfloat16(), labels.long()


def run(network, images):
    with torch.autocast("cpu", torch.bfloat16):
        return network(images[:, None].contiguous(memory_format=torch.channels_last)).float()


def main():
    folder, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 16, 128), nn.ReLU(), nn.Linear(128, 10)).to(memory_format=torch.channels_last)
    images, labels = read(folder, "train")
    steps = -(-len(images) // BATCH)
    optimizer = torch.optim.Adam(network.parameters(), betas=(0.7, 0.9), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, MAX_RATE, total_steps=steps, cycle_momentum=False)
    windows = images.unfold(1, CROP, 1).unfold(2, CROP, 1)  # [N,5,5,24,24], a view
    for chosen in torch.randperm(len(images)).split(BATCH):
        down, right = torch.randint(SIDE - CROP + 1, (2, len(chosen)))
        optimizer.zero_grad()
        logits = run(network, windows[chosen, down, right])
        nn.functional.cross_entropy(logits, labels[chosen], label_smoothing=SMOOTHING).backward()
        optimizer.step()
        schedule.step()
    edge = (SIDE - CROP) // 2
    images, labels = read(folder, "t10k")
    with torch.no_grad():
        middle = images[:, edge : edge + CROP, edge : edge + CROP]
        right = sum((run(network, part).argmax(1) == wanted).sum().item() for part, wanted in
                    zip(middle.split(1000), labels.split(1000)))
    print(json.dumps({"accuracy": right / len(labels)}))


if __name__ == "__main__":
    main()
