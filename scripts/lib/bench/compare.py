"""Runs the sides of each case in turn and compares their results. A side is a peer with one precision."""

import copy
import dataclasses
import statistics
import sys

import machine
import sides
import torch
from cases import CASES, flops_per_sample

RATIOS = ("wall_seconds", "epoch_seconds", "startup_seconds", "peak_memory_mb")
ERRORS = (RuntimeError, OSError, ValueError, TypeError, KeyError)
# For the loss check: a single batch of all samples, so that their order does not matter, and a learning rate at which the
# loss falls fast enough to reveal differences between optimizers.
CHECK_SAMPLES, CHECK_LEARNING_RATE = 512, 0.1
# Tolerances for rounding differences of losses, several times the observed 5e-6 and 1e-3. GPUs multiply fp32 as TF32.
TOLERANCES = {"fp32": 1e-4, "bf16": 5e-3}


def run_side(side, case, options, folder):
    peer, precision = side.rsplit("_", 1)
    return sides.PEERS_BY_NAME[peer][1](case, options, precision, folder)


def sides_of(name, options):
    return [side for side in options.sides if name in sides.JAX_CASES or not side.startswith("jax_")]


def what(side):
    peer, precision = side.rsplit("_", 1)
    return f"{sides.PEERS_BY_NAME[peer][0]}, {precision}"


def summarize(runs):
    """Returns the median and spread of each value that all runs have."""
    keys = [key for key in runs[0] if all(run[key] is not None for run in runs)]
    return {key: machine.spread([run[key] for run in runs]) for key in keys}


def ratios(runs, base):
    """Returns ratios to mnist-train in the same precision, as medians over pairs of adjacent runs."""
    pairs = list(zip(runs, base))
    keys = [key for key in RATIOS if pairs and all(a[key] and b[key] for a, b in pairs)]
    return {key: round(statistics.median(a[key] / b[key] for a, b in pairs), 3) for key in keys}


def floor(name, samples, rates):
    """Returns the minimum seconds per epoch in each precision: the epoch's FLOPs at the measured rates of all devices."""
    return {precision: flops_per_sample(name) * samples / rates[f"{precision}_flops"] for precision in ("bf16", "fp32")}


def distance(losses, ours):
    """Returns the largest difference between the losses of a step; infinite if a loss is missing or NaN."""
    if len(losses) != len(ours):
        return float("inf")
    return max(abs(a - b) if a == a and b == b else float("inf") for a, b in zip(losses, ours))


def check_losses(name, options, folder):
    """Runs a few steps on each side from the same weights on the same batch. Returns each side's losses with their distance
    from ours, and the sides that failed or differ too much."""
    case = dataclasses.replace(CASES[name], batch_size=CHECK_SAMPLES, learning_rate=CHECK_LEARNING_RATE)
    short = copy.copy(options)
    short.epochs, short.limit = options.check_steps, CHECK_SAMPLES
    checked, failures = {}, {}
    for side in sorted(sides_of(name, options), key=lambda side: not side.startswith("ours_")):
        try:
            checked[side] = {"losses": run_side(side, case, short, folder).losses()}
        except ERRORS as error:
            failures[side] = f"loss check: {error}"
            continue
        precision = side.rsplit("_", 1)[1]
        ours = checked.get(f"ours_{precision}")
        if ours:
            checked[side]["distance"] = distance(checked[side]["losses"], ours["losses"])
            if not checked[side]["distance"] <= TOLERANCES["bf16" if options.device == "cuda" else precision]:
                failures[side] = f"losses {checked[side]['losses']} differ too much from ours {ours['losses']}"
        print(f"{name} check {side}: {checked[side]}", file=sys.stderr)
    for side, failure in failures.items():
        print(f"{name} {side} failed: {failure}", file=sys.stderr)
    return checked, failures


def measure_case(name, options, rates, folder):
    case = CASES[name]
    checked, failures = check_losses(name, options, folder) if options.check_steps and not case.batch_norm else ({}, {})
    runs = {side: [] for side in sides_of(name, options)}
    for number in range(options.runs):
        for side in [side for side in sides_of(name, options) if side not in failures]:
            try:
                runs[side].append(run_side(side, case, options, folder).figures())
                print(f"{name} {number + 1} {side}: {runs[side][-1]}", file=sys.stderr)
            except ERRORS as error:
                failures[side] = str(error)
                print(f"{name} {number + 1} {side} failed: {error}", file=sys.stderr)
    chosen = [side for side in sides_of(name, options) if side not in failures and runs[side]]
    floors = floor(name, case.samples(options), rates)
    result = {
        "config": case.config, "settings": list(case.settings), "samples": case.samples(options),
        "floor_epoch_seconds": floors, **({"failures": failures} if failures else {}),
        "loss_check": checked or machine.NOT_MEASURED, "sides": {},
    }
    for side in chosen:
        precision = side.rsplit("_", 1)[1]
        figures = summarize(runs[side])
        result["sides"][side] = {
            "what": what(side), **figures, "floor_reached": floors[precision] / figures["epoch_seconds"]["median"],
            "times_as_much": ratios(runs[side], runs.get(f"ours_{precision}", [])),
        }
    return result


def measure(options, older, folder, keep):
    """Measures all cases and returns the result. Also passes the result so far to `keep` after each case, so that a later
    failure loses nothing. `older`: existing results of other cases."""
    seen = machine.Machine(options.binary, options.processes, options.device)
    units = options.processes if options.device == "cuda" else 1  # rates are for one GPU, or for all cores together
    result = {
        "what": f"{options.processes}" + (" single-threaded" if options.device == "cpu" else "") +
                f" processes on {options.device}, {options.epochs} epochs, {options.runs} interleaved runs of each program",
        "command": options.command, **seen.describe(), "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
    }
    cases = dict(older)
    for name in options.cases:
        rates = {key: value * units for key, value in machine.rates(options.processes, options.device).items()}
        cases[name] = {key: result[key] for key in ("date", "commit")} | measure_case(name, options, rates, folder)
        result["cases"] = {known: cases[known] for known in CASES if known in cases}
        keep(result | seen.describe())
    return result | seen.describe()
