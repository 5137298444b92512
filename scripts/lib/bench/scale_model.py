"""A model of one training step on several ranks: computing, averaging gradients, and waiting for the slowest.

All times are seconds, all sizes bytes. Averaging has two parts. What keeps the rank's own core busy (copying, adding, system calls)
takes longer where ranks share cores and hides behind nothing. What the wire takes goes by while the rank computes, if the strategy
lets it. Nothing in here was fitted to a step that it is compared with: see `Constants`.
"""

from dataclasses import dataclass, replace
from statistics import NormalDist

MIB = 1 << 20
BACKWARD = 2 / 3  # of a step's computing: the gradients of weights and of inputs take a product each, the forward pass takes one
FIRST_BUCKET = MIB  # of c10d's Reducer: closed early, so that sending starts early


@dataclass(frozen=True)
class Network:
    """A network, with the parameters and multiply-adds of its layers in the order of the forward pass."""

    name: str
    layers: tuple

    @property
    def gradient_bytes(self):
        return 4 * sum(parameters for parameters, _ in self.layers)

    @property
    def multiply_adds(self):
        return sum(count for _, count in self.layers)


@dataclass(frozen=True)
class Computing:
    """A step of one rank that is alone: it takes `fixed` + samples * `per_sample`, with a standard deviation of `spread`."""

    fixed: float
    per_sample: float
    spread: float = 0.0

    def seconds(self, samples):
        return self.fixed + samples * self.per_sample


@dataclass(frozen=True)
class Constants:
    """What averaging costs, from steps of two small networks that the model is not tested on (scripts/bench/scale --parts constants).

    A step of a ring is a message to one neighbour and one from the other, and waits for a latency.
    """

    latency: float  # of a step of a ring inside a host, where each rank has a core
    latency_crowded: float  # where it has not: whoever is to receive has to wait for a core first
    latency_between: float  # between two hosts
    ring_byte: float  # what a core is busy with a byte of gradients that two ranks average inside a host
    ring_byte_between: float  # and between two
    compress_byte: float  # and with one that is sent in half as many bytes, besides
    bucket_byte: float  # and with one that goes through buckets, besides
    barrier: float  # of shared memory, of which a step has three, with a core for each rank
    shared_byte: float  # what a core is busy with a byte that two ranks average in shared memory


@dataclass(frozen=True)
class Hosts:
    """Where the ranks are: `ranks` in all, as many on each of `hosts`, and beside them other programs that keep `others` cores busy.
    A cable between two hosts carries `bandwidth` bytes a second, and after a pause `burst` of them at once.
    """

    ranks: int
    hosts: int = 1
    cores: int = 1  # of each host
    bandwidth: float = float("inf")
    burst: float = 0.0
    others: float = 0.0

    @property
    def ranks_per_core(self):
        return max(1.0, (self.ranks + self.others) / self.hosts / self.cores)

    @property
    def crowded(self):
        return self.ranks > self.hosts * self.cores


def expected_maximum(count):
    """The expected maximum of so many standard normal numbers (Blom, 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def skew(spread, hosts):
    """What the slowest core takes beyond the mean one; ranks that share a core add up, and their variances with them."""
    used = min(hosts.ranks, hosts.hosts * hosts.cores)
    return spread * hosts.ranks_per_core ** 0.5 * expected_maximum(used)


def ring(size, hosts, constants):
    """Seconds of a ring all-reduce: a rank's core is busy, its steps wait for one another, and its bytes are on the wire."""
    steps, passed = 2 * (hosts.ranks - 1), 2 * (hosts.ranks - 1) / hosts.ranks * size
    if hosts.hosts > 1:
        return passed * constants.ring_byte_between, steps * constants.latency_between, max(0.0, passed - hosts.burst) / hosts.bandwidth
    latency = constants.latency_crowded if hosts.crowded else constants.latency
    return passed * constants.ring_byte, steps * latency, 0.0


def buckets(network, limit=25 * MIB):
    """The Reducer's buckets in the order in which backward fills them: bytes of each, and the part of backward that is then done."""
    result, filled, done = [], 0, 0.0
    for parameters, count in reversed(network.layers):
        done += count / network.multiply_adds
        filled += 4 * parameters
        if filled >= (limit if result else min(limit, FIRST_BUCKET)):
            result.append((filled, done))
            filled = 0
    return result + ([(filled, 1.0)] if filled else [])


def overlapped(begin, backward, reductions):
    """When backward and the last of `reductions` are through: (part of backward done before, copying, sending) of each, in turn."""
    computed, sent, before = begin, 0.0, 0.0
    for done, copying, sending in reductions:
        computed += (done - before) * backward + copying
        sent = max(sent, computed) + sending
        before = done
    return max(computed + (1 - before) * backward, sent)


def flat(network, compute, hosts, constants, compressed=False):
    share, size = hosts.ranks_per_core, network.gradient_bytes
    busy, latency, wire = ring(size / 2 if compressed else size, hosts, constants)
    if compressed:  # the statistics behind the gradients are not, and take a ring of their own
        compute += size * constants.compress_byte
        latency *= 2
    # Pieces of the buffer are added while others are on the wire, so the longer of the two counts.
    return share * compute + latency + max(share * busy, wire)


def bucketed(network, compute, hosts, constants, limit=25 * MIB):
    share, all_busy = hosts.ranks_per_core, 0.0
    reductions = [(0.0, 0.0, ring(0, hosts, constants)[1])]  # of the statistics, before backward
    for size, done in buckets(network, limit):
        busy, latency, wire = ring(size, hosts, constants)
        copied = size * constants.bucket_byte
        reductions.append((done, share * copied, latency + max(share * busy, wire)))
        hosts = replace(hosts, burst=0.0)
        all_busy += busy + copied
    backward = share * BACKWARD * compute
    # What averaging keeps the core busy, backward has to wait for.
    return max(overlapped(share * compute - backward, backward, reductions), share * (compute + all_busy))


def shared_memory(network, compute, hosts, constants):
    busy = network.gradient_bytes * constants.shared_byte
    return hosts.ranks_per_core * (compute + busy + 3 * constants.barrier)


STRATEGIES = {
    "flat": flat, "bucketed": bucketed, "shared_memory": shared_memory,
    "bf16": lambda *arguments: flat(*arguments, compressed=True),
}


def step_seconds(strategy, network, computing, samples, hosts, constants):
    """One step with so many samples a rank."""
    return STRATEGIES[strategy](network, computing.seconds(samples), hosts, constants) + skew(computing.spread, hosts)
