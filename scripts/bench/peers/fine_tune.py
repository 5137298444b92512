"""The recipe of configs/fine_tune.json in PyTorch: the published EfficientNet-Lite0 with a new head, one process on all cores.

    fine_tune.py FOLDER WEIGHTS RECORD EPOCHS SIDE SEED PRECISION     prints {"balanced_accuracy": N, "seconds": [per epoch]}

RECORD is the dataset.json of an mnist-train run; the same files are held out. Images are decoded once, in a pool on all cores.
"""

import json
import math
import multiprocessing
import os
import pathlib
import sys
import time

import numpy
import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image, ImageOps
from torch import nn
from torchvision.transforms.v2 import functional

BATCH, RATE, PADDING, WARMUP_EPOCHS = 32, 0.001, 10, 1
EXTENSIONS = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".pnm"}
MOST_PIXELS = 2**26
FOLDER, WEIGHTS, RECORD = map(pathlib.Path, sys.argv[1:4])
EPOCHS, SIDE, SEED = map(int, sys.argv[4:7])
Image.MAX_IMAGE_PIXELS = None


def decode(path):
    """Returns uint8 [3,SIDE,SIDE]: on white, short side resized, centre crop. None if the image is unreadable or too large."""
    try:
        picture = Image.open(FOLDER / path)
        if picture.width * picture.height > MOST_PIXELS:
            return None
        picture = ImageOps.exif_transpose(picture)
        if picture.has_transparency_data:
            picture = picture.convert("RGBA")
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
        picture = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return None
    return numpy.asarray(functional.center_crop(functional.resize(picture, [SIDE], antialias=True), [SIDE, SIDE])).transpose(2, 0, 1)


def read_sets():
    """Returns the images and labels of the training and test sets."""
    record = json.loads(RECORD.read_text())
    held_out = {"test": set(record["test"]), "validation": set(record["validation"])}
    sets = {"train": ([], []), "test": ([], [])}
    with multiprocessing.Pool() as pool:
        for label, row in enumerate(record["classes"]):
            paths = [os.path.relpath(os.path.join(below, name), FOLDER)
                     for below, _, names in os.walk(FOLDER / row["name"], followlinks=True)
                     for name in names if pathlib.Path(name).suffix.lower() in EXTENSIONS]
            for path, picture in zip(paths, pool.map(decode, paths, chunksize=4)):
                if picture is None or path in held_out["validation"]:
                    continue
                pictures, labels = sets["test" if path in held_out["test"] else "train"]
                pictures.append(torch.from_numpy(picture.copy()))
                labels.append(label)
    return [(torch.stack(pictures), torch.tensor(labels)) for pictures, labels in sets.values()]


def main():
    is_bf16 = sys.argv[7] == "bf16"
    (images, labels), (test_images, test_labels) = read_sets()
    torch.manual_seed(SEED)
    classes = int(labels.max()) + 1
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(WEIGHTS))
    network._fc = nn.Linear(network._fc.in_features, classes)
    network._global_params = network._global_params._replace(drop_connect_rate=0)
    network.to(memory_format=torch.channels_last)
    head = set(network._fc.parameters())
    optimizer = torch.optim.AdamW([{"params": [each for each in network.parameters() if each not in head], "lr": RATE / 10},
                                   {"params": list(head), "lr": RATE}], weight_decay=0.05, fused=True)
    steps = math.ceil(len(labels) / BATCH)
    warm = WARMUP_EPOCHS * steps

    def factor(step):
        if step < warm:
            return step / warm
        return (1 + math.cos(math.pi * (step - warm) / (EPOCHS * steps - warm))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    counts = torch.bincount(labels)
    weights = len(labels) / (classes * counts)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

    def run(batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            scaled = (batch.float().div_(255) - mean) / std
            return network(scaled.contiguous(memory_format=torch.channels_last)).float()

    seconds = []
    for _ in range(EPOCHS):
        begin = time.perf_counter()
        network.train()
        padded = nn.functional.pad(images, (PADDING,) * 4, value=255)
        windows = padded.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
        for chosen in torch.randperm(len(labels)).split(BATCH):
            down, right = torch.randint(2 * PADDING + 1, (2, len(chosen)))
            batch = windows[chosen, :, down, right]
            mirrored = torch.rand(len(chosen)) < 0.5
            batch[mirrored] = batch[mirrored].flip(3)
            optimizer.zero_grad()
            nn.functional.cross_entropy(run(batch), labels[chosen], weight=weights).backward()
            optimizer.step()
            schedule.step()
        seconds.append(time.perf_counter() - begin)
        network.eval()
        with torch.no_grad():
            found = torch.cat([run(part).argmax(1) for part in test_images.split(64)])
    recalls = [(found[test_labels == label] == label).float().mean().item() for label in range(classes)]
    print(json.dumps({"balanced_accuracy": sum(recalls) / classes, "seconds": seconds, "samples": len(labels)}))


if __name__ == "__main__":
    main()
