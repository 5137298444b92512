"""Runs torchvision without a trainer: a DataLoader with decode_image and Resize over an image folder, discarding the batches.

    torchvision_alone.py FOLDER WORKERS BATCH SIZE EPOCHS     prints {"images_per_second": N}
"""

import json
import pathlib
import sys
import time

import torch
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2.functional import resize


class Pictures(torch.utils.data.Dataset):
    def __init__(self, folder, size):
        self.files = sorted(str(path) for path in pathlib.Path(folder).glob("*/*"))
        self.size = [size, size]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return resize(decode_image(self.files[index], ImageReadMode.RGB), self.size, antialias=True)


def main():
    folder, workers, batch, size, epochs = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    pictures = Pictures(folder, size)
    loader = torch.utils.data.DataLoader(pictures, batch, shuffle=True, num_workers=workers, persistent_workers=True)
    for _ in loader:
        pass
    begin = time.perf_counter()
    for _ in range(epochs):
        for _ in loader:
            pass
    print(json.dumps({"images_per_second": epochs * len(pictures) / (time.perf_counter() - begin)}))


if __name__ == "__main__":
    main()
