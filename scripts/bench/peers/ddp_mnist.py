"""MNIST with DistributedDataParallel, as people write it in Python.

Started by torchrun; prints one JSON object a line on rank 0: the first step, each epoch, the end.
The recipe is that of configs/mnist.json: `net`, global batch 128, SGD with lr 0.01 and momentum 0.5.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(800, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, loader, optimizer, device):
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        yield loss


def test(model, loader, device):
    model.eval()
    correct = torch.zeros(2, dtype=torch.float64, device=device)
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            guess = model(images).argmax(dim=1)
            correct += torch.tensor([(guess == labels).sum(), len(labels)], device=device)
    dist.all_reduce(correct)
    return (correct[0] / correct[1]).item()


def say(event, **fields):
    if dist.get_rank() == 0:
        print(json.dumps({"event": event, "time": time.time(), **fields}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128, help="all processes together")
    arguments = parser.parse_args()

    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    torch.manual_seed(1)

    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    train_set = datasets.MNIST(arguments.data, train=True, transform=transform)
    test_set = datasets.MNIST(arguments.data, train=False, transform=transform)
    sampler = DistributedSampler(train_set, seed=1)
    train_loader = DataLoader(train_set, arguments.batch_size // dist.get_world_size(), sampler=sampler)
    test_loader = DataLoader(test_set, 1000, sampler=DistributedSampler(test_set, shuffle=False))

    model = DistributedDataParallel(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        begin = time.perf_counter()
        for step, _ in enumerate(train(model, train_loader, optimizer, device)):
            if epoch == 0 and step == 0:
                say("first_step")
        if use_cuda:
            torch.cuda.synchronize()
        train_seconds = time.perf_counter() - begin
        accuracy = test(model, test_loader, device)
        say("epoch", epoch=epoch + 1, train_seconds=train_seconds, test_accuracy=accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
