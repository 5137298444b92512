"""Generates the Markdown tables from the result files of scripts/bench/run, one table per kind of processor."""

from machine import NOT_MEASURED

MARK = "<!-- made by scripts/bench/table from scripts/bench/results/*/{cpu,recovery}.json; do not edit -->\n"
END = "<!-- end -->"
SHORT_NAMES = {"ours": "mnist-train", "ddp": "Python, DDP", "best": "best Python", "jax": "JAX", "inductor": "torch.compile",
               "inductor_ddp": "torch.compile, DDP"}


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.1f}"


def row(cells):
    return f"| {' | '.join(cells)} |"


def table(first_cells, rows):
    """Returns the lines of a table; each row is a list of cells."""
    return [row(first_cells), "|---" * len(first_cells) + "|", *map(row, rows)]


def peers_of(result):
    """Returns the peers of all cases, in order."""
    return list(dict.fromkeys(side.rsplit("_", 1)[0] for case in result["cases"].values() for side in case["sides"]))


def value_of(side, key, scale=1.0):
    """Returns a side's value with its ratio to mnist-train; a dash if there is no such side."""
    if not side:
        return "–"
    times = side["times_as_much"].get(key)
    return number(side[key]["median"] * scale) + (f" ({times:.1f}×)" if times and abs(times - 1) > 0.005 else "")


def comparison_table(result):
    """Returns the table of epoch times by case, precision and peer, and the first case's time to the first step and memory."""
    peers, rows = peers_of(result), []

    def add(label, key, case, precision, more="", scale=1.0):
        sides = [case["sides"].get(f"{peer}_{precision}") for peer in peers]
        rows.append([label, precision, case["date"] if more else "", more, *(value_of(side, key, scale) for side in sides)])

    precisions = sorted({side.rsplit("_", 1)[1] for case in result["cases"].values() for side in case["sides"]})
    for name, case in result["cases"].items():
        for precision in precisions:
            ours = case["sides"].get(f"ours_{precision}")
            add(f"`{name}`", "epoch_seconds", case, precision, f"{100 * ours['floor_reached']:.0f} %" if ours else "–")
    first, case = next(iter(result["cases"].items()))
    add(f"`{first}`: launch to first step", "startup_seconds", case, precisions[0])
    add(f"`{first}`: largest process, GB", "peak_memory_mb", case, precisions[0], scale=1e-3)
    return table(["epoch time, seconds", "precision", "measured", "floor reached", *(SHORT_NAMES[peer] for peer in peers)], rows)


def losses(result):
    """Returns a sentence about the loss check."""
    far, steps = {}, 0
    for case in result["cases"].values():
        for name, side in case["loss_check"].items() if case["loss_check"] != NOT_MEASURED else ():
            steps = len(side["losses"])
            peer, precision = name.rsplit("_", 1)
            if peer != "ours" and "distance" in side:
                far[precision] = max(side["distance"], far.get(precision, 0))
    if not far:
        return []
    return ["", f"Losses of {steps} steps differ from ours by at most {', '.join(f'{most:.1g} in {name}' for name, most in far.items())}."]


def kind(result):
    """Returns the kind of processor, such as "AMD EPYC, family 26, model 2", or the name of the GPU."""
    if result.get("device", "cpu") != "cpu":
        return result["device"]
    chip = result["machine"]["processor"]
    return chip["name"] + "".join(f", {key} {chip[key]}" for key in ("family", "model"))


def conditions(result):
    """Returns the description of a result's runs; older results word it differently."""
    text = result["what"].replace("alternating runs per side", "interleaved runs of each program")
    return text.replace(" processes of one thread", " single-threaded processes")


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


CASES_OF_README = ("net", "lenet", "mlp", "own_network", "resnet18")
# Sides of scripts/bench/recovery that are also peers of scripts/bench/run.
SIDES_OF_RECOVERY = {"ours": "mnist-train", "ddp": "DistributedDataParallel under torchrun"}


def recovery_rows(result, peers):
    """Returns rows with the cost of a lost process for each peer, if measured."""
    sides = [result["goodput"].get(SIDES_OF_RECOVERY.get(peer)) for peer in peers]
    return [["process kill to next step of `lenet`", *(number(side["recovery_seconds"]["median"]) if side else "–" for side in sides)],
            ["goodput with a kill every 15 s", *(f"{100 * side['goodput']:.1f} %" if side else "–" for side in sides)]]


def make_small(results, recoveries=()):
    """Returns a table of the newest result: epoch times by case and peer, the first case's time to the first step, and the cost
    of a lost process."""
    result = newest_first(results)[0]
    cases, peers = result["cases"], peers_of(result)
    first = next(iter(cases))
    times = [(f"epoch of `{name}`", "epoch_seconds", cases[name]) for name in CASES_OF_README if name in cases]
    times.append((f"launch to first step of `{first}`", "startup_seconds", cases[first]))
    rows = []
    for label, key, case in times:
        pairs = [[case["sides"].get(f"{peer}_{precision}") for precision in ("bf16", "fp32")] for peer in peers]
        rows.append([label, *(" / ".join(number(side[key]["median"]) if side else "–" for side in pair) if any(pair) else "–" for pair in pairs)])
    kills = []
    if recoveries:
        recovery = newest_first(recoveries)[0]
        rows += recovery_rows(recovery, peers)
        kills = [f"Kills: medians of {recovery['goodput']['kills']} on {kind(recovery)}, {recovery['date']}."]
    return [*table(["bf16 / fp32, seconds", *(SHORT_NAMES[peer] for peer in peers)], rows), "",
            f"Medians of {conditions(result).rsplit(', ', 1)[1]}; {kind(result)}; {result['machine']['cores']} cores, {result['date']}.", *kills]


def recovery_table(result):
    """Returns a table with the cost of a lost process for each side."""
    goodput = result["goodput"]
    rows = [[name, f"{number(side['recovery_seconds']['median'])} s, at most {number(side['recovery_seconds']['max'])} s",
             f"{side['redone_steps']['median']:.0f}, at most {side['redone_steps']['max']:.0f}", f"{100 * side['goodput']:.1f} %"]
            for name, side in goodput.items() if isinstance(side, dict)]
    return [f"### Lost processes: {kind(result)}", "", f"`lenet` on 2 processes for {goodput['seconds']:.0f} s, one of which is killed every 15 s; {result['date']}, "
            f"commit {result['commit']}.", "", *table(["side", "process kill to next step", "steps repeated", "goodput"], rows), ""]


def make_full(results, recoveries=()):
    """Returns a comparison table per processor, with factors relative to mnist-train in the same precision, then a table of the
    cost of lost processes per processor."""
    lines = []
    for result in newest_first(results):
        lines += [f"### {kind(result)}", "", f"{conditions(result)}; PyTorch {result['torch']}, {result['date']}, commit {result['commit']}.",
                  machine_line(result), "", *comparison_table(result), *losses(result), ""]
    for recovery in newest_first(recoveries):
        lines += recovery_table(recovery)
    return lines[:-1]


# For each file, the function that makes the table between its marks.
TABLES = {"README.md": make_small, "scripts/bench/README.md": make_full}


def replaced(text, name, lines):
    """Returns `text` of the file `name` with the lines between the marks replaced."""
    if MARK not in text:
        raise SystemExit(f"{name} lacks the mark of the table: {MARK}")
    before, rest = text.split(MARK, 1)
    _, after = rest.split(END, 1)
    return before + MARK + "\n".join(lines) + "\n" + END + after
