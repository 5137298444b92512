"""Runs the sides of each case in turn, and what follows from their figures. A side is a peer in one precision."""

import copy
import dataclasses
import statistics
import subprocess
import sys

import machine
import sides
import torch
from cases import CASES, flops_per_sample

RATIOS = ("wall_seconds", "epoch_seconds", "startup_seconds", "seconds_to_goal", "peak_memory_mb")
ERRORS = (RuntimeError, OSError, ValueError, TypeError, KeyError)
# The check's batch, which is all of its samples, so that their order does not matter; and its learning rate, at which the loss
# falls so fast that another optimizer would be seen.
CHECK_SAMPLES, CHECK_LEARNING_RATE = 512, 0.1
# How far a loss may be from ours by rounding, several times what was seen: 5e-6 and 1e-3. GPUs multiply fp32 as TF32.
TOLERANCES = {"fp32": 1e-4, "bf16": 5e-3}
# Keeps a core busy until the process that started it is gone, however that ended.
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10000))"


def run_side(side, case, options, folder):
    peer, precision = side.rsplit("_", 1)
    return sides.PEERS_BY_NAME[peer][1](case, options, precision, folder)


def what(side):
    peer, precision = side.rsplit("_", 1)
    return f"{sides.PEERS_BY_NAME[peer][0]}, {precision}"


def summarize(runs):
    """Each figure's median and spread; without those that a run did not reach."""
    keys = [key for key in runs[0] if all(run[key] is not None for run in runs)]
    return {key: machine.spread([run[key] for run in runs]) for key in keys}


def ratios(runs, base):
    """How many times as much as mnist-train in the same precision: medians of the ratios of neighbouring runs."""
    pairs = list(zip(runs, base))
    keys = [key for key in RATIOS if pairs and all(a[key] and b[key] for a, b in pairs)]
    return {key: round(statistics.median(a[key] / b[key] for a, b in pairs), 3) for key in keys}


def floor(name, samples, rates):
    """Seconds an epoch that the arithmetic alone takes in each precision, at the rates of all that computes."""
    return {precision: flops_per_sample(name) * samples / rates[f"{precision}_flops"] for precision in ("bf16", "fp32")}


def distance(losses, ours):
    """The largest difference of a step's loss; infinite where one of them is missing or not a number."""
    if len(losses) != len(ours):
        return float("inf")
    return max(abs(a - b) if a == a and b == b else float("inf") for a, b in zip(losses, ours))


def check_losses(name, options, folder):
    """Takes a few steps on each side, from the same weights on the same batch, and compares their losses with ours: gives the
    losses of each side and its distance from ours, and the sides that failed or are too far."""
    case = dataclasses.replace(CASES[name], batch_size=CHECK_SAMPLES, learning_rate=CHECK_LEARNING_RATE)
    short = copy.copy(options)
    short.epochs, short.limit = options.check_steps, CHECK_SAMPLES
    checked, failures = {}, {}
    for side in sorted(options.sides, key=lambda side: not side.startswith("ours_")):
        try:
            checked[side] = {"losses": run_side(side, case, short, folder).losses()}
        except ERRORS as error:
            failures[side] = f"the check of losses: {error}"
            continue
        precision = side.rsplit("_", 1)[1]
        ours = checked.get(f"ours_{precision}")
        if ours:
            checked[side]["distance"] = distance(checked[side]["losses"], ours["losses"])
            if not checked[side]["distance"] <= TOLERANCES["bf16" if options.device == "cuda" else precision]:
                failures[side] = f"losses {checked[side]['losses']} are too far from ours {ours['losses']}"
        print(f"{name} check {side}: {checked[side]}", file=sys.stderr)
    for side, failure in failures.items():
        print(f"{name} {side} failed: {failure}", file=sys.stderr)
    return checked, failures


def measure_case(name, options, rates, folder):
    case = CASES[name]
    checked, failures = check_losses(name, options, folder) if options.check_steps and not case.batch_norm else ({}, {})
    runs = {side: [] for side in options.sides}
    for number in range(options.runs):
        for side in [side for side in options.sides if side not in failures]:
            try:
                runs[side].append(run_side(side, case, options, folder).figures(case.goal))
                print(f"{name} {number + 1} {side}: {runs[side][-1]}", file=sys.stderr)
            except ERRORS as error:
                failures[side] = str(error)
                print(f"{name} {number + 1} {side} failed: {error}", file=sys.stderr)
    chosen = [side for side in options.sides if side not in failures and runs[side]]
    floors = floor(name, case.samples(options), rates)
    result = {
        "config": case.config, "settings": list(case.settings), "samples": case.samples(options), "goal": case.goal,
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


def measure_scaling(name, options, folder):
    """Seconds an epoch of mnist-train by precision and number of processes, and the efficiency against the first."""
    result = {}
    for precision in options.precisions:
        result[precision] = found = {}
        first = None
        for label in options.scaling.split(","):
            alone = copy.copy(options)
            alone.automatic = False
            alone.processes, alone.threads = (int(number) for number in (label if "x" in label else f"{label}x1").split("x"))
            figures = [run_side(f"ours_{precision}", CASES[name], alone, folder).figures(1) for _ in range(options.runs)]
            seconds, cores = machine.spread([each["epoch_seconds"] for each in figures]), alone.processes * alone.threads
            first = first or seconds["median"] * cores
            found[label] = {"epoch_seconds": seconds, "efficiency": first / (seconds["median"] * cores)}
            print(f"{name}, {precision}, {label} processes: {found[label]}", file=sys.stderr)
    return result


def measure_sharing(name, options, folder):
    """How many times as long an epoch of ours and of DDP takes while one more process keeps a core busy: runs in turn."""
    options = copy.copy(options)
    options.epochs = 1
    result = {}
    for side in [side for side in options.sides if side.startswith(("ours_", "ddp_"))]:
        alone, shared = [], []
        for _ in range(options.runs):
            alone.append(run_side(side, CASES[name], options, folder).figures(1)["epoch_seconds"])
            with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
                try:
                    shared.append(run_side(side, CASES[name], options, folder).figures(1)["epoch_seconds"])
                finally:
                    busy.kill()
        result[side] = {"epoch_seconds": machine.spread(alone), "epoch_seconds_shared": machine.spread(shared),
                        "times_as_long": statistics.median(b / a for a, b in zip(alone, shared))}
        print(f"{name} beside a busy process {side}: {result[side]}", file=sys.stderr)
    return result


def measure(options, folder, keep):
    """Gives what was measured, and gives it to `keep` after each case, so that whatever ends a later one takes nothing."""
    seen = machine.Machine(options.binary, options.processes, options.device)
    units = options.processes if options.device == "cuda" else 1  # of what the rates are measured on
    rates = {key: value * units for key, value in seen.rates.items()}
    result = {
        "what": f"{options.processes} processes" + (" of one thread" if options.device == "cpu" else "") +
                f" on {options.device}, {options.epochs} epochs, {options.runs} runs of each side in turn",
        "command": options.command, **seen.describe(), "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "cases": {},
    }
    for name in options.cases:
        result["cases"][name] = measure_case(name, options, rates, folder)
        keep(result | seen.describe())
    if options.scaling:
        result["scaling"] = {name: measure_scaling(name, options, folder) for name in options.cases}
    if options.sharing:
        result["sharing"] = {name: measure_sharing(name, options, folder) for name in options.cases}
    return result | seen.describe()
