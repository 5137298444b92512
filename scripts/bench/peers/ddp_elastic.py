"""A fault-tolerant ddp.py, following PyTorch's tutorial: it saves a snapshot of model and optimizer at the end of each epoch,
and every restart by torchrun resumes from it.

https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html
"""

import os

import torch
import torch.distributed as dist
from ddp import train
from flags import parse_arguments
from recipe import make_model, say
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

SNAPSHOT = os.environ["SNAPSHOT"]
EVERY = 10  # steps between printed lines


def main():
    arguments = parse_arguments(__doc__)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((arguments.mean,), (arguments.std,))])
    train_set = datasets.MNIST(arguments.data, train=True, transform=transform)
    sampler = DistributedSampler(train_set, seed=1)
    loader = DataLoader(train_set, arguments.batch_size // dist.get_world_size(), sampler=sampler)

    model = make_model(arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=arguments.momentum)
    first = 0
    if os.path.exists(SNAPSHOT):
        snapshot = torch.load(SNAPSHOT, weights_only=True)
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["epochs"]
    model = DistributedDataParallel(model)
    steps = len(loader)
    for epoch in range(first, arguments.epochs):
        sampler.set_epoch(epoch)
        for step, _ in enumerate(train(arguments, model, loader, optimizer, "cpu")):
            if step % EVERY == 0:
                say("step", step=epoch * steps + step)
        if dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            torch.save(state, SNAPSHOT + ".partial")
            os.replace(SNAPSHOT + ".partial", SNAPSHOT)


if __name__ == "__main__":
    main()
