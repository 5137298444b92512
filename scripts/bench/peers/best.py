"""One of our models, as fast as we could make it in Python: the data in memory, one flat buffer each for weights, gradients
and momentum, bf16 weights with an fp32 master copy, channels_last, one fused optimizer call and one all-reduce a step; on a
GPU the whole step in a CUDA graph. It starts its processes itself, by fork before anything large is loaded.

Prints one JSON object a line on rank 0: the first step, each epoch, the end.
"""

import os
import socket
import sys
import time


def fork_ranks(processes):
    """Sets what torch.distributed reads in each of them."""
    if processes == 1:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes), "RANK": "0", "LOCAL_RANK": "0"}
    for rank in range(1, processes):
        if os.fork() == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            return


if __name__ == "__main__":
    fork_ranks(int(sys.argv[sys.argv.index("--processes") + 1]))

import gzip  # noqa: E402
import pathlib  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from recipe import accuracy, all_sum, loss_function, make_model, parse_arguments, say, say_end  # noqa: E402


def read_idx(folder, name, header):
    path = next(path for path in (folder / name, folder / f"{name}.gz") if path.exists())
    data = (gzip.open(path) if path.suffix == ".gz" else open(path, "rb")).read()
    return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8)


def read_set(arguments, part, device):
    folder = pathlib.Path(arguments.data) / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[arguments.dataset] / "raw"
    images = read_idx(folder, f"{part}-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    return images.to(device), read_idx(folder, f"{part}-labels-idx1-ubyte", 8).long().to(device)


class Trainer:
    """Weights that compute are views into one bf16 (or fp32) buffer, and so are their gradients."""

    def __init__(self, model, arguments, device, dtype):
        self.arguments, self.device, self.dtype = arguments, device, dtype
        self.model = model.to(device)
        norms = [p for module in self.model.modules() if isinstance(module, torch.nn.BatchNorm2d) for p in module.parameters()]
        others = [p for p in self.model.parameters() if all(p is not norm for norm in norms)]
        self.master = torch.cat([self.flat(parameter) for parameter in others + norms])
        self.master.grad = torch.zeros_like(self.master)
        self.count = sum(parameter.numel() for parameter in others)  # batch norm's parameters stay in fp32
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

    def normalize(self, images):
        scaled = images.to(torch.float32).mul_(1 / (255 * self.arguments.std)).sub_(self.arguments.mean / self.arguments.std)
        return scaled.to(self.dtype).contiguous(memory_format=torch.channels_last)

    def step(self, images, labels, share):
        self.gradients.zero_()
        self.master.grad.zero_()
        loss_function(self.arguments)(self.model(self.normalize(images)).float(), labels).backward()
        self.master.grad[: self.count].copy_(self.gradients)
        self.master.grad.mul_(share)
        all_sum(self.master.grad)
        self.optimizer.step()
        self.weights.copy_(self.master[: self.count])

    def capture(self, images, labels, batch, share):
        """The step on `batch` samples in a CUDA graph that reads their numbers from the tensor it returns."""
        chosen = torch.zeros(batch, dtype=torch.int64, device=self.device)
        kept = [self.master.clone(), self.weights.clone()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step(images[chosen], labels[chosen], share)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.step(images[chosen], labels[chosen], share)
        self.master.copy_(kept[0])
        self.weights.copy_(kept[1])
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()
        return graph, chosen


def pick_dtype(device):
    if device.type == "cuda":
        return torch.bfloat16
    return torch.bfloat16 if "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text() else torch.float32


def train_epoch(trainer, images, labels, order, graph, first):
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    batch = trainer.arguments.batch_size
    for begin in range(0, len(order), batch):
        whole = order[begin : begin + batch]
        mine = whole[rank::world]
        if graph and len(whole) == batch:
            graph[1].copy_(mine)
            graph[0].replay()
        else:
            trainer.step(images[mine], labels[mine], len(mine) / len(whole))
        if first and begin == 0:
            say("first_step")


def test(trainer, images, labels):
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    correct = torch.zeros(2, dtype=torch.float64, device=trainer.device)
    trainer.model.eval()
    with torch.no_grad():
        for begin in range(rank * 1000, len(images), world * 1000):
            place = slice(begin, begin + 1000)
            right = (trainer.model(trainer.normalize(images[place])).argmax(1) == labels[place]).sum()
            correct += torch.stack([right, torch.full_like(right, len(labels[place]))])
    trainer.model.train()
    return accuracy(correct)


def main():
    arguments = parse_arguments(__doc__)
    use_cuda = arguments.device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    if arguments.processes > 1:
        dist.init_process_group("nccl" if use_cuda else "gloo")
    torch.manual_seed(1)
    model = make_model(arguments)
    images, labels = read_set(arguments, "train", device)
    if arguments.limit:
        images, labels = images[: arguments.limit], labels[: arguments.limit]
    test_images, test_labels = read_set(arguments, "t10k", device)
    trainer = Trainer(model, arguments, device, pick_dtype(device))
    mine = arguments.batch_size // arguments.processes
    graph = trainer.capture(images, labels, mine, mine / arguments.batch_size) if use_cuda else None
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1 + epoch)).to(device)
        begin = time.perf_counter()
        train_epoch(trainer, images, labels, order, graph, first=epoch == 0)
        if use_cuda:
            torch.cuda.synchronize()
        train_seconds = time.perf_counter() - begin
        say("epoch", epoch=epoch + 1, train_seconds=train_seconds, test_accuracy=test(trainer, test_images, test_labels))
    say_end()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
