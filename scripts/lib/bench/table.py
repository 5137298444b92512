"""README's tables, made of a result of scripts/bench/run."""

MARK = "<!-- made by scripts/bench/table from {path}; do not edit -->"
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


def make(result):
    """Markdown lines; factors say how many times as much as mnist-train in bf16."""
    where = result["processor"] if result["device"] == "cpu" else result["device"]
    lines = [f"{result['what']}; {where}, {result['cores']} cores, PyTorch {result['torch']}, {result['date']}, commit {result['commit']}:", ""]
    for name, case in result["cases"].items():
        lines += case_table(name, case)
    for name, by_processes in result.get("scaling", {}).items():
        parts = (f"{processes}: {entry['epoch_seconds']['median']:.3g} s ({100 * entry['efficiency']:.0f} %)"
                 for processes, entry in by_processes.items())
        lines += [f"An epoch of `{name}` by number of processes, and the efficiency: {', '.join(parts)}.", ""]
    return lines[:-1]


def replaced(text, path, lines):
    """`text` with what stands between the marks of this result replaced."""
    mark = MARK.format(path=path)
    before, rest = text.split(mark + "\n", 1)
    _, after = rest.split(END, 1)
    return before + mark + "\n" + "\n".join(lines) + "\n" + END + after
