"""The tables of results in Markdown files, made of results of scripts/bench/run: one for each kind of processor."""

from machine import NOT_MEASURED

MARK = "<!-- made by scripts/bench/table from scripts/bench/results/*/{cpu,recovery}.json; do not edit -->\n"
END = "<!-- end -->"
COLUMNS = (("epoch_seconds", "an epoch", " s"), ("floor_reached", "floor reached", ""), ("compile_seconds", "compiling", " s"),
           ("startup_seconds", "to first step", " s"), ("wall_seconds", "the whole command", " s"),
           ("seconds_to_goal", "to {goal:.0%} of the test set", " s"), ("test_accuracy", "test accuracy", ""),
           ("peak_memory_mb", "memory of the largest process", " MB"))
MISSING = {"seconds_to_goal": "not reached"}


def number(value, unit):
    return f"{value:.0f}{unit}" if value >= 100 else f"{value:.2g}{unit}" if value < 10 else f"{value:.1f}{unit}"


def figure(key, side, unit):
    """A side's figure, and how many times as much as mnist-train's it is."""
    if key not in side:
        return MISSING.get(key, "–")
    if key == "floor_reached":
        return f"{100 * side[key]:.0f} %"
    value = side[key]["median"]
    if key == "test_accuracy":
        return f"{100 * value:.2f} %"
    times = side["times_as_much"].get(key)
    return number(value, unit) + (f" ({times:.1f}×)" if times and abs(times - 1) > 0.005 else "")


def row(cells):
    return f"| {' | '.join(cells)} |"


def case_table(name, case):
    sides = case["sides"].values()
    columns = [column for column in COLUMNS if any(column[0] in side for side in sides)]
    lines = [row([f"`{name}`", *(label.format(goal=case["goal"]) for _, label, _ in columns)]), "|---" * (len(columns) + 1) + "|"]
    lines += [row([side["what"], *(figure(key, side, unit) for key, _, unit in columns)]) for side in sides]
    floors = case["floor_epoch_seconds"]
    lines += ["", f"Floor of an epoch: {floors['bf16']:.2g} s in bf16, {floors['fp32']:.2g} s in fp32.{losses(case)}", ""]
    return lines


def losses(case):
    """A sentence on the check of losses."""
    if case["loss_check"] == NOT_MEASURED:
        return ""
    far = {}
    for name, side in case["loss_check"].items():
        peer, precision = name.rsplit("_", 1)
        if peer != "ours" and "distance" in side:
            far[precision] = max(side["distance"], far.get(precision, 0))
    if not far:
        return ""
    steps = len(next(iter(case["loss_check"].values()))["losses"])
    return f" Losses of {steps} steps differ from ours by at most {', '.join(f'{most:.1g} in {name}' for name, most in far.items())}."


def kind(result):
    """AMD EPYC, family 26, model 2; a GPU by its name."""
    if result.get("device", "cpu") != "cpu":
        return result["device"]
    chip = result["machine"]["processor"]
    return chip["name"] + "".join(f", {key} {chip[key]}" for key in ("family", "model"))


def measured(value, scale, unit):
    return value if value == NOT_MEASURED else f"{value / scale:.3g} {unit}"


def machine_line(result):
    seen = result["machine"]
    rates, load, flags = seen["rates"], seen["load_average"], seen["processor"]["flags"]
    before = load if load == NOT_MEASURED else load["before"]
    if before != NOT_MEASURED:
        before = next(f"{value:.2g}" for value in before if value != NOT_MEASURED)
    during = load["during"] if load["during"] == NOT_MEASURED else f"{load['during']['median']:.2g}"
    note = f" ({rates['note']})" if "note" in rates else ""
    extensions = flags if flags == NOT_MEASURED else ", ".join(flag for flag in flags if flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16"))
    return (f"{seen['cores_used']} of {seen['cores']} cores; matrix products {measured(rates['bf16_flops'], 1e9, 'GFLOP/s')} in bf16, "
            f"{measured(rates['fp32_flops'], 1e9, 'GFLOP/s')} in fp32{note}, memory {measured(rates['memory_bytes_per_s'], 1e9, 'GB/s')}; "
            f"load average {before} before, {during} during; extensions: {extensions}.")


def newest_first(results):
    return sorted(results, key=lambda result: result["date"], reverse=True)


# The sides of scripts/bench/recovery that are peers of scripts/bench/run, too.
SIDES_OF_RECOVERY = {"ours": "mnist-train", "ddp": "DistributedDataParallel under torchrun"}


SHORT_NAMES = {"ours": "mnist-train", "ddp": "Python, DDP", "best": "best Python", "jax": "JAX", "inductor": "torch.compile",
               "inductor_ddp": "torch.compile, DDP"}


def recovery_rows(result, peers):
    """What a lost process costs each peer, where that was measured."""
    sides = [result["goodput"].get(SIDES_OF_RECOVERY.get(peer)) for peer in peers]
    return [row(["killed process to next step of `lenet`", *(number(side["recovery_seconds"]["median"], "") if side else "–" for side in sides)]),
            row(["goodput with a kill every 15 s", *(f"{100 * side['goodput']:.1f} %" if side else "–" for side in sides)])]


def make_small(results, recoveries=()):
    """One table of the newest result: seconds of an epoch of each case by peer, and to the first step of the first one; and what
    a lost process costs."""
    result = newest_first(results)[0]
    cases = result["cases"]
    first = next(iter(cases))
    sides = cases[first]["sides"]
    peers = list(dict.fromkeys(side.rsplit("_", 1)[0] for side in sides))
    rows = [(f"an epoch of `{name}`", "epoch_seconds", case) for name, case in cases.items()]
    rows.append((f"command to first step of `{first}`", "startup_seconds", cases[first]))
    lines = [row(["bf16 / fp32, seconds", *(SHORT_NAMES[peer] for peer in peers)]), "|---" * (len(peers) + 1) + "|"]
    for label, key, case in rows:
        cells = [[case["sides"].get(f"{peer}_{precision}") for precision in ("bf16", "fp32")] for peer in peers]
        lines.append(row([label, *(" / ".join(number(side[key]["median"], "") if side else "–" for side in pair) for pair in cells)]))
    kills = []
    if recoveries:
        recovery = newest_first(recoveries)[0]
        lines += recovery_rows(recovery, peers)
        kills = [f"Kills: medians of {recovery['goodput']['kills']} on {kind(recovery)}, {recovery['date']}."]
    return [*lines, "", f"Medians of {result['what'].rsplit(', ', 1)[1]}; {kind(result) if result['device'] == 'cpu' else result['device']}; "
            f"{result['machine']['cores']} cores, {result['date']}.", *kills]


def recovery_table(result):
    """What a lost process costs each side."""
    goodput = result["goodput"]
    lines = [f"### Lost processes: {kind(result)}", "", f"`lenet` on 2 processes for {goodput['seconds']:.0f} s, one of which is killed every 15 s; {result['date']}, "
             f"commit {result['commit']}.", "", "| side | killed process to next step | steps taken again | goodput |",
             "|---|---|---|---|"]
    for name, side in [(name, side) for name, side in goodput.items() if isinstance(side, dict)]:
        seconds, steps = side["recovery_seconds"], side["redone_steps"]
        lines.append(row([name, f"{number(seconds['median'], ' s')}, at most {number(seconds['max'], ' s')}",
                          f"{steps['median']:.0f}, at most {steps['max']:.0f}", f"{100 * side['goodput']:.1f} %"]))
    return [*lines, ""]


def scaling_table(scaling):
    """Epochs by number of processes, and of threads where a process has several."""
    if not scaling:
        return []
    labels = list(next(iter(next(iter(scaling.values())).values())))
    lines = [row(["an epoch of mnist-train, and the efficiency", *(spelled(label) for label in labels)]), "|---" * (len(labels) + 1) + "|"]
    for name, by_precision in scaling.items():
        lines += [row([f"`{name}`, {precision}", *(f"{entry['epoch_seconds']['median']:.3g} s ({100 * entry['efficiency']:.0f} %)"
                                                  for entry in by_label.values())]) for precision, by_label in by_precision.items()]
    return [*lines, ""]


def spelled(label):
    """2 processes; 1 process of 2 threads, for 1x2."""
    processes, _, threads = label.partition("x")
    return f"{processes} process{'es' if processes != '1' else ''}" + (f" of {threads} threads" if threads else "")


def sharing_table(sharing):
    """How many times as long epochs take beside one more process that keeps a core busy."""
    if not sharing:
        return []
    sides = list(next(iter(sharing.values())))
    names = {"ours": "mnist-train", "ddp": "DistributedDataParallel"}
    lines = [row(["an epoch beside a busy process, times as long", *(f"{names[side.rsplit('_', 1)[0]]}, {side.rsplit('_', 1)[1]}" for side in sides)]),
             "|---" * (len(sides) + 1) + "|"]
    lines += [row([f"`{name}`", *(f"{entry['times_as_long']:.2f}" for entry in by_side.values())]) for name, by_side in sharing.items()]
    return [*lines, ""]


def make_full(results, recoveries=()):
    """All figures of all cases, a block for each processor; factors say how many times as much as mnist-train in that precision.
    Behind them what lost processes cost, again a block for each processor."""
    lines = []
    for result in newest_first(results):
        lines += [f"### {kind(result)}", "", f"{result['what']}; PyTorch {result['torch']}, {result['date']}, commit {result['commit']}.",
                  machine_line(result), ""]
        for name, case in result["cases"].items():
            lines += case_table(name, case)
        lines += scaling_table(result.get("scaling", {})) + sharing_table(result.get("sharing", {}))
    for recovery in newest_first(recoveries):
        lines += recovery_table(recovery)
    return lines[:-1]


# Which tables a file holds, between marks of their own.
TABLES = {"README.md": make_small, "scripts/bench/README.md": make_full}


def replaced(text, name, lines):
    """`text` of the file with that name, the lines between the marks replaced."""
    if MARK not in text:
        raise SystemExit(f"{name} has no place for the table: {MARK}")
    before, rest = text.split(MARK, 1)
    _, after = rest.split(END, 1)
    return before + MARK + "\n".join(lines) + "\n" + END + after
