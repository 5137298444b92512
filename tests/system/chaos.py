"""Injects random faults into a series of runs; each run must end with the same weights as an undisturbed one.

usage: scripts/chaos [--runs 50] [--seed 1] [--only NUMBER] [--device cuda]

Each run draws a number of processes, an averaging strategy, and one or two faults, each with a rank, a phase and a time. If
the launcher was stopped or killed, the run is resumed. At the end model.pt must have the same SHA-256 as the undisturbed run,
and no process or partial file may be left. Failures are printed with the command that reproduces them.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from support import MNIST, PHASES, Process, RunFolder, averaging, merged, send, train, train_command, wait_until, write_config

# Three epochs of 20 steps, a checkpoint every 7 steps, and evaluations of a few dozen batches.
CONFIG = {"epochs": 3, "batch_size": 45, "test_batch_size": 40,
          "data": {"root": str(MNIST.parent), "limit_train": 886, "limit_test": 2000},  # all of MNIST, so that loading takes longer
          "checkpoint": {"every_steps": 7}, "launch": {"max_restarts": 5, "hang_timeout_s": 2}}
WORLDS = {"cpu": [(2, "flat"), (2, "bucketed"), (2, "shared_memory"), (3, "shared_memory")], "cuda": [(2, "flat"), (2, "bucketed")]}
RANK_FAULTS = ("kill", "kill", "stop", "pause")
LAUNCHER_FAULTS = ("term", "interrupt", "kill launcher")
PLACES = (*PHASES[:5], "training", "training", "a save")
END_S = 90


class Failure(Exception):
    pass


class Fault:
    def __init__(self, draw, processes, earliest_step):
        self.kind = draw.choice(RANK_FAULTS + LAUNCHER_FAULTS)
        self.rank = draw.randrange(processes)
        self.place = draw.choice(PLACES)
        self.step = draw.randrange(earliest_step, earliest_step + 20)
        self.delay_s = draw.choice([0, draw.uniform(0, 0.005), draw.uniform(0, 0.1)])

    def __str__(self):
        return f"{self.kind} rank {self.rank} in {self.place} from step {self.step} + {1000 * self.delay_s:.1f} ms"

    def reached(self, process):
        board = process.board()
        if len(board) <= self.rank:
            return False
        status = board[self.rank]
        if self.place == "a save":
            return status.step >= self.step and any((process.run_folder.path / "checkpoints").glob("*.partial*"))
        if PHASES[status.phase] != self.place:
            return False
        return status.step >= self.step or self.place in PHASES[:3]

    def strike(self, process):
        """Injects the fault; returns False if the run had already ended."""
        wait_until(lambda: process.popen.poll() is not None or self.reached(process), str(self), END_S, interval=0)
        time.sleep(self.delay_s)
        rank = process.ranks().get(self.rank)
        if process.popen.poll() is not None or rank is None:
            return False
        if self.kind in ("kill", "stop"):
            send(rank, signal.SIGKILL if self.kind == "kill" else signal.SIGSTOP)
        elif self.kind == "pause":
            send(rank, signal.SIGSTOP)
            time.sleep(0.3)
            send(rank, signal.SIGCONT)
        else:
            numbers = {"term": signal.SIGTERM, "interrupt": signal.SIGINT, "kill launcher": signal.SIGKILL}
            process.send(numbers[self.kind])
        return True


EXPECTED_CODES = {"term": (143, 0), "interrupt": (130, 0), "kill launcher": (-9, 0)}


def draw_run(seed, number, device):
    draw = random.Random(f"{seed}/{number}")
    processes, strategy = draw.choice(WORLDS[device])
    faults = [Fault(draw, processes, 20 * i) for i in range(draw.choice([1, 2]))]
    return processes, strategy, faults


def attempt(folder, config, processes, fault, *flags):
    """Runs the program once and returns its exit code, which must be 0 or the code expected for the fault."""
    with Process(train_command(config, folder / "run", processes, *flags), folder, folder / "run") as process:
        struck = fault is not None and fault.strike(process)
        code = process.wait(END_S)
        try:
            wait_until(lambda: not process.alive(), "the end of all processes", 2)
        except AssertionError:
            raise Failure(f"processes still running: {process.alive()}") from None
        expected = EXPECTED_CODES.get(fault.kind, (0,)) if struck else (0,)
        if code not in expected:
            raise Failure(f"exit {code}, expected one of {expected}\n{process.stderr}")
        return code


def config_for(strategy, device):
    config = merged(CONFIG, averaging(strategy) | {"device": device})
    return merged(config, {"launch": {"hang_timeout_s": 30}}) if device == "cuda" else config  # CUDA takes seconds to start


def disturb(folder, seed, number, device):
    """Runs training once with faults. Raises Failure or AssertionError if it does not end as expected."""
    processes, strategy, faults = draw_run(seed, number, device)
    config = write_config(folder, config_for(strategy, device))
    code = attempt(folder, config, processes, faults[0])
    for fault in [*faults[1:], None]:
        if code == 0:
            break
        code = attempt(folder, config, processes, fault, "--resume", "auto")
    if code != 0:
        code = attempt(folder, config, processes, None, "--resume", "auto")
    leftovers = [str(path) for path in (folder / "run").rglob("*.partial*")]
    if leftovers:
        raise Failure(f"partial files left: {leftovers}")
    return processes, strategy


def run_chaos(runs, seed, only=None, device="cpu", say=print):
    """Returns the number of failed runs."""
    failures = 0
    undisturbed = {}
    shared_before = set(Path("/dev/shm").glob("mnist-train-*"))
    for number in [only] if only is not None else range(runs):
        processes, strategy, faults = draw_run(seed, number, device)
        story = f"run {number}: {processes} processes, {strategy}; " + "; ".join(map(str, faults))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if (processes, strategy) not in undisturbed:
                (folder / "undisturbed").mkdir()
                expected = train(folder / "undisturbed", config_for(strategy, device), processes=processes)
                undisturbed[processes, strategy] = expected.digest()
            try:
                disturb(folder, seed, number, device)
                digest = RunFolder(folder / "run").digest()
                if digest != undisturbed[processes, strategy]:
                    raise Failure(f"weights differ: {digest}, expected {undisturbed[processes, strategy]}")
                say(f"{story}: same weights")
            except (Failure, AssertionError) as failure:
                failures += 1
                say(f"{story}: {failure}\nreproduce with: scripts/chaos --seed {seed} --only {number} --device {device}")
    left = set(Path("/dev/shm").glob("mnist-train-*")) - shared_before
    if left:
        say(f"shared memory left: {sorted(map(str, left))}")
    return failures + bool(left)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run only this run number")
    parser.add_argument("--device", choices=tuple(WORLDS), default="cpu", help="cuda: the processes may share a GPU")
    arguments = parser.parse_args()
    failures = run_chaos(arguments.runs, arguments.seed, arguments.only, arguments.device, say=lambda line: print(line, flush=True))
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
