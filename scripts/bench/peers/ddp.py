"""Trains one of the models with DistributedDataParallel, as in a typical Python script; autocast for bf16.

Started by torchrun; rank 0 prints one JSON object per line: for the first step, each epoch and the end.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from flags import parse_arguments
from recipe import autocast, loss_function, make_model, mean_of_all, say, say_end
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import datasets, transforms


def train(arguments, model, loader, optimizer, device):
    """Trains an epoch; yields each step's loss and number of samples."""
    loss_of = loss_function(arguments)
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        with autocast(arguments):
            loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        yield loss.detach(), len(labels)


def test(arguments, model, loader, device):
    model.eval()
    correct = torch.zeros(2, dtype=torch.float64, device=device)
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            with autocast(arguments):
                guess = model(images).argmax(dim=1)
            correct += torch.tensor([(guess == labels).sum(), len(labels)], device=device)
    return mean_of_all(correct)


def main():
    arguments = parse_arguments(__doc__)
    use_cuda = arguments.device == "cuda"
    dist.init_process_group("nccl" if use_cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    torch.manual_seed(1)

    shaped = [transforms.Resize(arguments.image_size), transforms.Grayscale(arguments.channels)] if arguments.image_size != 28 else []
    transform = transforms.Compose([*shaped, transforms.ToTensor(), transforms.Normalize((arguments.mean,), (arguments.std,))])
    dataset = datasets.MNIST if arguments.dataset == "mnist" else datasets.FashionMNIST
    train_set = dataset(arguments.data, train=True, transform=transform)
    test_set = dataset(arguments.data, train=False, transform=transform)
    train_set, test_set = (Subset(part, range(count)) if count else part
                           for part, count in ((train_set, arguments.limit), (test_set, arguments.test_limit)))
    sampler = DistributedSampler(train_set, seed=1)
    train_loader = DataLoader(train_set, arguments.batch_size // dist.get_world_size(), sampler=sampler)
    test_loader = DataLoader(test_set, 1000, sampler=DistributedSampler(test_set, shuffle=False))

    model = DistributedDataParallel(make_model(arguments).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=arguments.momentum)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, dtype=torch.float64, device=device)
        begin = time.perf_counter()
        for step, (loss, count) in enumerate(train(arguments, model, train_loader, optimizer, device)):
            total[0].add_(loss, alpha=count)
            total[1].add_(count)
            if epoch == 0 and step == 0:
                say("first_step")
        if use_cuda:
            torch.cuda.synchronize()
        train_seconds = time.perf_counter() - begin
        say("epoch", epoch=epoch + 1, train_seconds=train_seconds, train_loss=mean_of_all(total),
            test_accuracy=test(arguments, model, test_loader, device))
    say_end()
    dist.destroy_process_group()
    # When DDP's Reducer drops the last reference to a Gloo group, it sometimes deadlocks with the GIL:
    # the group's destructor waits for a thread that waits for the GIL.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
