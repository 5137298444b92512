"""Trains one of the models as fast as we could make it in Python: data in memory and normalised once, one flat buffer each for
weights, gradients and momentum, bf16 (or fp32) weights with fp32 master weights, channels_last, one fused optimizer call and one
all-reduce per step; on a GPU, CUDA graphs of 1 and of 16 steps that gather their samples. Forks before importing torch.

Rank 0 prints one JSON object per line: for the first step, each epoch and the end.
"""

import os
import sys
import tempfile
import time


def fork_ranks(processes):
    """Forks the ranks, sets their environment variables, and creates an empty file for the rendezvous."""
    if processes == 1:
        return
    handle, meeting_file = tempfile.mkstemp()  # removed at the end
    os.close(handle)
    os.environ |= {"MEETING_FILE": meeting_file, "WORLD_SIZE": str(processes), "RANK": "0", "LOCAL_RANK": "0"}
    for rank in range(1, processes):
        if os.fork() == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            return


if __name__ == "__main__":
    fork_ranks(int(sys.argv[sys.argv.index("--processes") + 1]))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from flags import parse_arguments  # noqa: E402
from recipe import (DTYPES, all_sum, loss_function, make_model, mean_of_all, normalize, rank_and_size, read_set,  # noqa: E402
                    say, say_end)


class Trainer:
    """Trains a model whose weights are views into one bf16 (or fp32) buffer, and its gradients into another."""

    def __init__(self, model, arguments, device, dtype):
        self.arguments, self.device, self.dtype = arguments, device, dtype
        self.model = model.to(device)
        norms = [p for module in self.model.modules() if isinstance(module, torch.nn.BatchNorm2d) for p in module.parameters()]
        others = [p for p in self.model.parameters() if all(p is not norm for norm in norms)]
        self.loss_and_count = torch.zeros(2, dtype=torch.float64, device=device)  # of this epoch's samples
        self.master = torch.cat([self.flat(parameter) for parameter in others + norms])
        self.master.grad = torch.zeros_like(self.master)
        self.count = sum(parameter.numel() for parameter in others)  # without batch norm's parameters, which stay in fp32
        self.weights = self.master[: self.count].to(dtype)
        self.gradients = torch.zeros_like(self.weights)
        offset = 0
        for parameter in others + norms:
            place = slice(offset, offset + parameter.numel())
            offset = place.stop
            in_master = place.start >= self.count
            parameter.data = self.view((self.master if in_master else self.weights)[place], parameter.shape)
            parameter.grad = self.view((self.master.grad if in_master else self.gradients)[place], parameter.shape)
        self.optimizer = torch.optim.SGD([self.master], lr=arguments.learning_rate, momentum=arguments.momentum, fused=True)

    @staticmethod
    def flat(parameter):
        return (parameter.permute(0, 2, 3, 1) if parameter.dim() == 4 else parameter).detach().reshape(-1)

    @staticmethod
    def view(flat, shape):
        if len(shape) != 4:
            return flat.view(shape)
        out, into, height, width = shape
        return flat.view(out, height, width, into).permute(0, 3, 1, 2)

    def step(self, images, labels, share):
        self.gradients.zero_()
        self.master.grad.zero_()
        loss = loss_function(self.arguments)(self.model(images).float(), labels)
        loss.backward()
        self.loss_and_count[0].add_(loss.detach(), alpha=len(labels))
        self.loss_and_count[1].add_(len(labels))
        self.master.grad[: self.count].copy_(self.gradients)
        self.master.grad.mul_(share)
        all_sum(self.master.grad)
        self.optimizer.step()
        self.weights.copy_(self.master[: self.count])


class GraphedSteps:
    """CUDA graphs of training steps with `batch` samples per rank, whose indices are read from `order`."""

    AT_ONCE = 16

    def __init__(self, trainer, images, labels, batch, share):
        self.order = torch.zeros(len(images) // rank_and_size()[1] + 1, dtype=torch.int64, device=trainer.device)
        self.position = torch.arange(batch, device=trainer.device)
        changed = [trainer.master, trainer.weights, trainer.loss_and_count, *trainer.model.buffers()]
        kept = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()

        def step():
            chosen = self.order[self.position]
            trainer.step(images[chosen], labels[chosen], share)
            self.position.add_(batch)

        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graphs = {}
        for steps in (1, self.AT_ONCE):
            self.graphs[steps] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[steps], stream=stream):
                for _ in range(steps):
                    step()
        for tensor, value in zip(changed, kept):
            tensor.copy_(value)
        for state in trainer.optimizer.state.values():
            state["momentum_buffer"].zero_()

    def begin(self, order):
        """Sets this rank's part of the epoch's sample order."""
        self.order[: len(order)].copy_(order)
        self.position.copy_(torch.arange(len(self.position), device=self.position.device))

    def run(self, count):
        """Runs the next `count` steps."""
        while count > 0:
            steps = self.AT_ONCE if count >= self.AT_ONCE else 1
            self.graphs[steps].replay()
            count -= steps


def train_epoch(trainer, images, labels, order, graphed, first):
    rank, world = rank_and_size()
    batch = trainer.arguments.batch_size
    whole_batches = len(order) // batch if graphed else 0
    if graphed:
        graphed.begin(order[rank::world])
        if first:
            graphed.run(1)
            torch.cuda.synchronize()
            say("first_step")
        graphed.run(whole_batches - first)
    for begin in range(whole_batches * batch, len(order), batch):
        whole = order[begin : begin + batch]
        mine = whole[rank::world]
        trainer.step(images[mine], labels[mine], len(mine) / len(whole))
        if first and begin == 0:
            say("first_step")


def test(trainer, images, labels):
    rank, world = rank_and_size()
    correct = torch.zeros(2, dtype=torch.float64, device=trainer.device)
    trainer.model.eval()
    with torch.no_grad():
        for begin in range(rank * 1000, len(images), world * 1000):
            place = slice(begin, begin + 1000)
            right = (trainer.model(images[place]).argmax(1) == labels[place]).sum()
            correct += torch.stack([right, torch.full_like(right, len(labels[place]))])
    trainer.model.train()
    return mean_of_all(correct)


def main():
    arguments = parse_arguments(__doc__)
    use_cuda = arguments.device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    if arguments.processes > 1:
        dist.init_process_group("nccl" if use_cuda else "gloo", f"file://{os.environ['MEETING_FILE']}",
                                rank=int(os.environ["RANK"]), world_size=arguments.processes)
    torch.manual_seed(1)
    model = make_model(arguments)
    images, labels = read_set(arguments, "train", device)
    test_images, test_labels = read_set(arguments, "t10k", device)
    trainer = Trainer(model, arguments, device, DTYPES[arguments.precision])
    mine = arguments.batch_size // arguments.processes
    images, test_images = (normalize(arguments, each, trainer.dtype) for each in (images, test_images))
    graphed = GraphedSteps(trainer, images, labels, mine, mine / arguments.batch_size) if use_cuda else None
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1 + epoch)).to(device)
        begin = time.perf_counter()
        trainer.loss_and_count.zero_()
        train_epoch(trainer, images, labels, order, graphed, first=epoch == 0)
        if use_cuda:
            torch.cuda.synchronize()
        train_seconds = time.perf_counter() - begin
        say("epoch", epoch=epoch + 1, train_seconds=train_seconds, train_loss=mean_of_all(trainer.loss_and_count),
            test_accuracy=test(trainer, test_images, test_labels))
    say_end()
    if dist.is_initialized():
        dist.barrier()
        if rank_and_size()[0] == 0:
            os.remove(os.environ["MEETING_FILE"])
        os._exit(0)  # destroying the group sometimes aborts: "terminate called without an active exception"


if __name__ == "__main__":
    main()
