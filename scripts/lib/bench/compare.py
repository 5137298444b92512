"""Runs the sides of each case in turn, and what follows from their figures."""

import copy
import statistics
import sys

import machine
import sides
import torch
from cases import CASES, flops_per_sample
from recipe import MODELS

SIDES = {
    "bf16": ("mnist-train, bf16", lambda *case: sides.mnist_train(case[0], case[1], "bf16", case[2])),
    "fp32": ("mnist-train, fp32", lambda *case: sides.mnist_train(case[0], case[1], "fp32", case[2])),
    "ddp": ("Python, DistributedDataParallel", sides.python_ddp),
    "best": ("Python, the best we could write", sides.best_python),
}
RATIOS = ("wall_seconds", "epoch_seconds", "startup_seconds", "seconds_to_goal", "peak_memory_mb")


def summarize(runs):
    """Each figure's median and spread; without those that a run did not reach."""
    keys = [key for key in runs[0] if all(run[key] is not None for run in runs)]
    return {key: machine.spread([run[key] for run in runs]) for key in keys}


def ratios(runs, base):
    """How many times as much as mnist-train: medians of the ratios of neighbouring runs."""
    pairs = list(zip(runs, base))
    keys = [key for key in RATIOS if all(a[key] and b[key] for a, b in pairs)]
    return {key: round(statistics.median(a[key] / b[key] for a, b in pairs), 3) for key in keys}


def floor(case, options, rates):
    """Seconds an epoch that the arithmetic alone takes in each precision."""
    flops = flops_per_sample(MODELS[case.model]()) * case.samples(options)
    return {name: flops / (rate * options.processes) for name, rate in rates.items()}


def measure_case(name, options, rates, folder):
    case = CASES[name]
    chosen = options.sides.split(",")
    runs = {side: [] for side in chosen}
    failures = {}
    for number in range(options.runs):
        for side in [side for side in chosen if side not in failures]:
            try:
                runs[side].append(SIDES[side][1](case, options, folder))
                print(f"{name} {number + 1} {side}: {runs[side][-1]}", file=sys.stderr)
            except (RuntimeError, OSError, ValueError, StopIteration) as error:
                failures[side] = str(error)
                print(f"{name} {number + 1} {side} failed: {error}", file=sys.stderr)
    chosen = [side for side in chosen if side not in failures]
    if not chosen:
        return {"config": case.config, "failures": failures}
    base = runs["bf16" if "bf16" in chosen else chosen[0]]
    floors = floor(case, options, rates)
    return {
        "config": case.config, "settings": list(case.settings), "samples": case.samples(options), "goal": case.goal,
        "floor_epoch_seconds": floors, **({"failures": failures} if failures else {}),
        "sides": {side: {"what": SIDES[side][0], **summarize(runs[side]), "times_as_much": ratios(runs[side], base)} for side in chosen},
        "floor_reached": {side: floors[side] / statistics.median(run["epoch_seconds"] for run in runs[side])
                          for side in chosen if side in floors},
    }


def measure_scaling(name, options, folder):
    """Seconds an epoch of mnist-train by number of processes, and the efficiency against the first."""
    result = {}
    for processes in map(int, options.scaling.split(",")):
        alone = copy.copy(options)
        alone.processes = processes
        seconds = [sides.mnist_train(CASES[name], alone, "bf16", folder)["epoch_seconds"] for _ in range(options.runs)]
        result[processes] = {"epoch_seconds": machine.spread(seconds)}
        first, first_count = next(iter(result.values())), next(iter(result))
        result[processes]["efficiency"] = (
            first["epoch_seconds"]["median"] * first_count / (result[processes]["epoch_seconds"]["median"] * processes))
        print(f"{name}, {processes} processes: {result[processes]}", file=sys.stderr)
    return result


def measure(options, folder, keep):
    """Gives what was measured, and gives it to `keep` after each case, so that whatever ends a later one takes nothing."""
    rates = {"bf16": machine.matmul_flops(options.device, torch.bfloat16), "fp32": machine.matmul_flops(options.device, torch.float32)}
    result = {
        "what": f"{options.processes} processes" + (" of one thread" if options.device == "cpu" else "") +
                f" on {options.device}, {options.epochs} epochs, {options.runs} runs of each side in turn",
        "command": f"scripts/bench/run {' '.join(options.cases)} --runs {options.runs} --epochs {options.epochs} "
                   f"--processes {options.processes} --device {options.device}"
                   + (f" --scaling {options.scaling}" if options.scaling else ""),
        **machine.describe(), "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "matmul_flops_per_process": rates,
        "cases": {},
    }
    for name in options.cases:
        result["cases"][name] = measure_case(name, options, rates, folder)
        keep(result)
    if options.scaling:
        result["scaling"] = {name: measure_scaling(name, options, folder) for name in options.cases}
    return result
