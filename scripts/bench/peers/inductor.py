"""Trains one of the models with torch.compile, as in a typical script: data in memory, channels_last, fused optimizer, autocast
for bf16. One process on all available cores; under torchrun, the model is wrapped in DistributedDataParallel, then compiled.

Rank 0 prints one JSON object per line: for compilation, the first step, each epoch and the end.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from flags import batch_sizes, parse_arguments
from recipe import autocast, loss_function, make_model, mean_of_all, normalize, rank_and_size, read_set, say, say_end
from torch.nn.parallel import DistributedDataParallel

TEST_BATCH = 1000


def loss_on(arguments, model, images, labels):
    with autocast(arguments):
        return loss_function(arguments)(model(images), labels)


@torch.no_grad()
def test(arguments, model, images, labels):
    rank, world = rank_and_size()
    correct = torch.zeros(2, dtype=torch.float64, device=images.device)
    model.eval()
    for begin in range(rank * TEST_BATCH, len(images), world * TEST_BATCH):
        place = slice(begin, begin + TEST_BATCH)
        with autocast(arguments):
            guess = model(images[place]).argmax(dim=1)
        correct += torch.tensor([(guess == labels[place]).sum(), len(guess)], device=images.device)
    model.train()
    return mean_of_all(correct)


def compile_all(arguments, model, images, labels, test_images):
    """Runs one batch of each size to trigger compilation. Returns the elapsed seconds."""
    rank, world = rank_and_size()
    begin = time.perf_counter()
    for size in batch_sizes(arguments, len(images)):
        mine = torch.arange(size)[rank::world].to(images.device)
        loss_on(arguments, model, images[mine], labels[mine]).backward()
    model.zero_grad()
    model.eval()
    with torch.no_grad(), autocast(arguments):
        model(test_images[:TEST_BATCH])
    model.train()
    return time.perf_counter() - begin


def main():
    arguments = parse_arguments(__doc__)
    use_cuda = arguments.device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if use_cuda else torch.device("cpu")
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, world = rank_and_size()
    torch.manual_seed(1)
    model = make_model(arguments).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=arguments.momentum, fused=True)
    model = torch.compile(DistributedDataParallel(model) if world > 1 else model, dynamic=False)
    images, labels = read_set(arguments, "train", device)
    test_images, test_labels = read_set(arguments, "t10k", device)
    images, test_images = (normalize(arguments, each, torch.float32) for each in (images, test_images))
    say("compiled", seconds=compile_all(arguments, model, images, labels, test_images))
    for epoch in range(arguments.epochs):
        begin = time.perf_counter()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1 + epoch)).to(device)
        total = torch.zeros(2, dtype=torch.float64, device=device)
        for place in range(0, len(order), arguments.batch_size):
            chosen = order[place : place + arguments.batch_size][rank::world]
            optimizer.zero_grad()
            loss = loss_on(arguments, model, images[chosen], labels[chosen])
            loss.backward()
            optimizer.step()
            total[0].add_(loss.detach(), alpha=len(chosen))
            total[1].add_(len(chosen))
            if epoch == 0 and place == 0:
                say("first_step")
        if use_cuda:
            torch.cuda.synchronize()
        train_seconds = time.perf_counter() - begin
        say("epoch", epoch=epoch + 1, train_seconds=train_seconds, train_loss=mean_of_all(total),
            test_accuracy=test(arguments, model, test_images, test_labels))
    say_end()
    if dist.is_initialized():
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # as in ddp.py


if __name__ == "__main__":
    main()
