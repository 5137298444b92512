"""What the model of a step lets expect of 8 to 1,024 H100s, eight a machine. No such machine was measured: see `SOURCES`."""

from dataclasses import dataclass
from math import log2

import scale_model

GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)
MACHINE = 8  # GPUs
STRONG_BATCH = 8192  # over all GPUs
WEAK_BATCH = {"net": 128, "lenet": 128, "mlp": 128, "resnet18": 256}  # a GPU: those of the shipped configs
OPERATIONS = {"net": 24, "lenet": 29, "mlp": 19, "resnet18": 156}  # of a captured step, counted: gpu_estimate.md
OPERATION = 2.35e-6  # of a graph, gpu_estimate.md
LAUNCH = 6e-6  # of an operation that the host launches by itself: assumed
SPREAD = 0.02  # of a step's computing, from GPU to GPU: assumed
FLOPS = 0.36 * 989e12  # bf16: the part of an A100's peak that the fastest published CIFAR-10 training reaches, of an H100's peak
PER_SAMPLE = {"resnet18": 3.5e-3 / 256}  # convolutions, batch norm and sums, gpu_estimate.md
NVLS, NODE = 476e9, 8 * 47e9  # bytes/s that NCCL's benchmark calls bus bandwidth: in a machine with NVLink SHARP; of 8 network cards
SOURCES = (
    "operations of a captured step, time of one, and `resnet18`'s time a sample: [gpu_estimate.md](../gpu_estimate.md)",
    "NVLink 4, 900 GB/s a GPU in both directions, of which all-reduce makes 476 GB/s of bus bandwidth in a machine of eight H100s; "
    "InfiniBand NDR of 400 Gbit/s a GPU, of which 46 to 48 GB/s arrive: NVIDIA's answer in "
    "[nccl-tests#290](https://github.com/NVIDIA/nccl-tests/issues/290)",
    "latencies, and the part of the bandwidth that trees, rings and the protocols LL and LL128 reach: the table by which NCCL itself "
    "chooses between them ([src/graph/tuning.cc](https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc))",
    "arithmetic at 36 % of an H100's 989 TFLOP/s in bf16, as [airbench](https://github.com/KellerJordan/cifar10-airbench) reaches it "
    "on an A100",
    "assumed, from nothing published: 6 µs an operation that the host launches by itself, and steps that differ by 2 % from GPU to GPU",
)


def all_reduce(size, gpus):
    """(latency, seconds on the wire) of NCCL's fastest way, by its own table; in µs there."""
    machines = gpus // MACHINE
    inside, levels, between = MACHINE - 1, log2(machines), machines - 1
    passed = 2 * (gpus - 1) / gpus * size
    few_bytes = 141e9 if machines == 1 else 39e9 if machines == 2 else 20.4e9
    ways = [  # latency in µs, bytes, bytes/s
        (6.8 + 2 * (inside * 0.6 + levels * 5.0), 2 * size, min(NODE * 0.92 / 3.8, few_bytes)),  # tree, LL
        (14.0 + 2 * (inside * 1.25 + levels * 8.5), 2 * size, NODE * 0.92 * (7 / 9 if machines == 1 else 15 / 16)),  # tree, LL128
        (8.4 + 2 * (inside * 4.0 + levels * 14.0), 2 * size, NODE * 0.92),  # tree
        (14.0 + 2 * (gpus - 1 - between) * 1.9 + 2 * between * 4.0, passed, NODE * 0.92),  # ring, LL128
        (8.4 + 2 * (gpus - 1 - between) * 3.4 + 2 * between * 14.0, passed, NODE),  # ring
        (25.0, passed, NVLS) if machines == 1 else (25.0 + 2 * levels * 18.0, passed, NODE),  # NVLink SHARP, between machines as a tree
    ]
    return min(((latency * 1e-6, sent / rate) for latency, sent, rate in ways), key=sum)


@dataclass(frozen=True)
class Step:
    """Its seconds, and what they are spent on."""

    seconds: float
    parts: dict

    @property
    def limit(self):
        return max(self.parts, key=self.parts.get)


def computing(network):
    """A captured step of one GPU, in bf16."""
    arithmetic = PER_SAMPLE.get(network.name, 6 * network.multiply_adds / FLOPS)
    return scale_model.Computing(OPERATIONS[network.name] * OPERATION, arithmetic)


def skew(seconds, gpus):
    return SPREAD * seconds * scale_model.expected_maximum(gpus)


def flat(network, samples, gpus):
    """The step as one graph, with one all-reduce of fp32 behind backward."""
    alone = computing(network)
    latency, wire = all_reduce(network.gradient_bytes, gpus) if gpus > 1 else (0.0, 0.0)
    parts = {"small operations": alone.fixed, "arithmetic": samples * alone.per_sample, "latency": latency, "bandwidth": wire,
             "the slowest GPU": skew(alone.seconds(samples), gpus)}
    return Step(sum(parts.values()), parts)


def bucketed(network, samples, gpus):
    """Operation by operation, averaging in bf16 (as gradients are computed) while backward runs."""
    alone = computing(network)
    launches = OPERATIONS[network.name] * LAUNCH
    compute = max(launches, alone.seconds(samples))
    reductions = [(done, 0.0, sum(all_reduce(size / 2, gpus))) for size, done in scale_model.buckets(network)]
    backward = scale_model.BACKWARD * compute
    end = scale_model.overlapped(compute - backward, backward, reductions)
    parts = {"launches" if launches > alone.seconds(samples) else "arithmetic": compute, "averaging": end - compute,
             "the slowest GPU": skew(compute, gpus)}
    return Step(sum(parts.values()), parts)


def scaling(network, gpus):
    """Weak and strong scaling on so many GPUs: the steps, and the efficiency beside one GPU with the same batch a GPU or in all."""
    result = {}
    for kind, samples, of_one in (("weak", WEAK_BATCH[network.name], WEAK_BATCH[network.name]),
                                  ("strong", STRONG_BATCH / gpus, STRONG_BATCH)):
        one = flat(network, of_one, 1).seconds
        step, overlapping = flat(network, samples, gpus), bucketed(network, samples, gpus)
        ideal = one if kind == "weak" else one / gpus
        result[kind] = {"samples": samples, "flat_s": step.seconds, "bucketed_s": overlapping.seconds, "limit": step.limit,
                        "efficiency": ideal / step.seconds, "parts_s": step.parts}
    return result
