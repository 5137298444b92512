"""The tables of results in Markdown files, made of results of scripts/bench/run: one for each kind of processor."""

from machine import NOT_MEASURED

MARK = "<!-- made by scripts/bench/table from scripts/bench/results/*/cpu.json; do not edit -->\n"
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
    far = {precision: max((side["distance"] for name, side in case["loss_check"].items()
                           if name.endswith(precision) and "distance" in side), default=0) for precision in ("bf16", "fp32")}
    steps = len(next(iter(case["loss_check"].values()))["losses"])
    return f" Losses of {steps} steps differ from ours by at most {far['bf16']:.1g} in bf16, {far['fp32']:.1g} in fp32."


def kind(result):
    """AMD EPYC, family 26, model 2; a GPU by its name."""
    if result["device"] != "cpu":
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


def make_small(results):
    """One table of the newest result: seconds of an epoch of each case by peer, and to the first step of the first one."""
    result = newest_first(results)[0]
    cases = result["cases"]
    first = next(iter(cases))
    sides = cases[first]["sides"]
    peers = list(dict.fromkeys(side.rsplit("_", 1)[0] for side in sides))
    names = {side.rsplit("_", 1)[0]: entry["what"].rsplit(", ", 1)[0] for side, entry in sides.items()}
    rows = [(f"an epoch of `{name}`", "epoch_seconds", case) for name, case in cases.items()]
    rows.append((f"command to first step of `{first}`", "startup_seconds", cases[first]))
    lines = [row(["bf16 / fp32, seconds", *(names[peer] for peer in peers)]), "|---" * (len(peers) + 1) + "|"]
    for label, key, case in rows:
        cells = [[case["sides"].get(f"{peer}_{precision}") for precision in ("bf16", "fp32")] for peer in peers]
        lines.append(row([label, *(" / ".join(number(side[key]["median"], "") if side else "–" for side in pair) for pair in cells)]))
    return [*lines, "", f"Medians of {result['what'].rsplit(', ', 1)[1]}; {result['machine']['processor']['name'] if result['device'] == 'cpu' else result['device']}, "
            f"{result['machine']['cores']} cores, {result['date']}."]


def make_full(results):
    """All figures of all cases, a block for each processor; factors say how many times as much as mnist-train in that precision."""
    lines = []
    for result in newest_first(results):
        lines += [f"### {kind(result)}", "", f"{result['what']}; PyTorch {result['torch']}, {result['date']}, commit {result['commit']}.",
                  machine_line(result), ""]
        for name, case in result["cases"].items():
            lines += case_table(name, case)
        for name, by_processes in result.get("scaling", {}).items():
            parts = (f"{processes}: {entry['epoch_seconds']['median']:.3g} s ({100 * entry['efficiency']:.0f} %)"
                     for processes, entry in by_processes.items())
            lines += [f"An epoch of `{name}` by number of processes, and the efficiency: {', '.join(parts)}.", ""]
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
