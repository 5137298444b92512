"""The tables of results in Markdown files, made of a result of scripts/bench/run."""

END = "<!-- end -->"
ROWS = (("epoch_seconds", "an epoch of training", " s"), ("startup_seconds", "command to first step", " s"),
        ("wall_seconds", "the whole command", " s"), ("seconds_to_goal", "command to {goal:.0%} of the test set", " s"),
        ("test_accuracy", "test accuracy", ""), ("peak_memory_mb", "memory of the largest process", " MB"))


def figure(key, value, unit):
    if key == "test_accuracy":
        return f"{100 * value:.2f} %"
    return f"{value:.0f}{unit}" if value >= 100 else f"{value:.2g}{unit}" if value < 10 else f"{value:.1f}{unit}"


def case_table(name, case):
    sides = case["sides"]
    lines = [f"| `{name}` | " + " | ".join(side["what"] for side in sides.values()) + " |", "|---" * (len(sides) + 1) + "|"]
    for key, label, unit in ROWS:
        if not any(key in side for side in sides.values()):
            continue
        cells = []
        for side in sides.values():
            if key not in side:
                cells.append("not reached")
                continue
            times = side["times_as_much"].get(key)
            factor = f" ({times:.1f}×)" if times and abs(times - 1) > 0.005 else ""
            cells.append(figure(key, side[key]["median"], unit) + factor)
        lines.append(f"| {label.format(goal=case['goal'])} | " + " | ".join(cells) + " |")
    reached = ", ".join(f"{100 * share:.0f} % in {side}" for side, share in case["floor_reached"].items())
    floors = case["floor_epoch_seconds"]
    lines += ["", f"Floor of an epoch: {floors['bf16']:.2g} s in bf16, {floors['fp32']:.2g} s in fp32; reached: {reached}.", ""]
    return lines


def where(result):
    return f"{result['processor'] if result['device'] == 'cpu' else result['device']}, {result['cores']} cores"


def make_small(result):
    """One table: seconds of an epoch of each case, and to the first step of the first one."""
    cases = result["cases"]
    sides = next(iter(cases.values()))["sides"]
    rows = [(f"an epoch of `{name}`", "epoch_seconds", case) for name, case in cases.items()]
    first = next(iter(cases))
    rows.append((f"command to first step of `{first}`", "startup_seconds", cases[first]))
    lines = ["| | " + " | ".join(side["what"] for side in sides.values()) + " |", "|---" * (len(sides) + 1) + "|"]
    for label, key, case in rows:
        cells = (figure(key, case["sides"][side][key]["median"], " s") for side in sides)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return [*lines, "", f"Medians of {result['what'].rsplit(', ', 1)[1]}; {where(result)}, {result['date']}."]


def make_full(result):
    """All figures of all cases; factors say how many times as much as mnist-train in bf16."""
    lines = [f"{result['what']}; {where(result)}, PyTorch {result['torch']}, {result['date']}, commit {result['commit']}:", ""]
    for name, case in result["cases"].items():
        lines += case_table(name, case)
    for name, by_processes in result.get("scaling", {}).items():
        parts = (f"{processes}: {entry['epoch_seconds']['median']:.3g} s ({100 * entry['efficiency']:.0f} %)"
                 for processes, entry in by_processes.items())
        lines += [f"An epoch of `{name}` by number of processes, and the efficiency: {', '.join(parts)}.", ""]
    return lines[:-1]


# Which tables a file holds, between marks of their own.
TABLES = {"README.md": make_small, "scripts/bench/README.md": make_full}


def replaced(text, name, path, lines):
    """`text` of the file with that name, the lines between the marks of this result replaced."""
    mark = f"<!-- made by scripts/bench/table from {path}; do not edit -->\n"
    if mark not in text:
        raise SystemExit(f"{name} has no place for the table: {mark}")
    before, rest = text.split(mark, 1)
    _, after = rest.split(END, 1)
    return before + mark + "\n".join(lines) + "\n" + END + after
