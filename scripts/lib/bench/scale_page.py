"""The constants of the model from what was measured, what it says of the other steps, and the page and plot of both."""

import math
from dataclasses import replace
from html import escape

import scale_gpus
import scale_model
from scale_model import Computing, Constants, Hosts, Network

TOLERANCE = 0.2
QUIET = 0.1  # cores that other programs keep busy
BURST = 64 * 1024  # what scale_runs.limit_cable lets pass at once
BANDWIDTHS = (0.1, 1, 10)  # Gbit/s
BATCH_OF_RANK = {"net": 64, "lenet": 64, "mlp": 64, "resnet18": 128}  # half of a shipped config's
COLORS = {"net": "#1668c2", "lenet": "#d9932f", "mlp": "#2f8f5b", "resnet18": "#b0413e"}
STRATEGIES = ("shared_memory", "flat", "bucketed", "bf16")


def networks_of(result):
    return {name: Network(name, tuple(map(tuple, layers))) for name, layers in result["networks"].items()}


def bytes_of_layers(width):
    """Of gradients, in the networks that the constants are made from."""
    return 4 * (784 * width + width + 10 * width + 10)


def beside_others(name, others, cores):
    """How many times as long a step of this case took because other programs kept cores busy."""
    ranks = int(name.split(" ")[0])
    place = Hosts(2, 2, 1) if " hosts, " in name else Hosts(ranks, 1, cores)
    return replace(place, others=others).ranks_per_core / place.ranks_per_core


def fit(part):
    """The constants, and what each model computes on one rank."""
    step = {name: case["step_s"] / beside_others(name, case["others_cores"], part["machine"]["cores"])
            for name, case in part["cases"].items() if "step_s" in case}
    small, large = bytes_of_layers(16), bytes_of_layers(2048)

    def beyond(where, strategy, size):
        """What a step takes longer than the same work on one rank."""
        return step[f"{where}, {size}, {strategy}"] - step[f"1 rank, {size}"]

    def a_byte(where, strategy):
        return (beyond(where, strategy, "large") - beyond(where, strategy, "small")) / (large - small)

    def without_bytes(where, strategy, byte):
        """What the small network's step takes longer, its few bytes aside."""
        return max(0.0, beyond(where, strategy, "small") - small * byte)

    ring_byte, ring_byte_between = a_byte("2 ranks", "flat"), a_byte("2 hosts", "flat")
    shared_byte = max(0.0, a_byte("2 ranks", "shared_memory"))
    constants = Constants(
        latency=without_bytes("2 ranks", "flat", ring_byte) / 2,
        latency_crowded=(step["4 ranks, small, flat"] - 2 * (step["1 rank, small"] + 1.5 * small * ring_byte)) / 6,
        latency_between=without_bytes("2 hosts", "flat", ring_byte_between) / 2,
        ring_byte=ring_byte, ring_byte_between=ring_byte_between,
        compress_byte=max(0.0, a_byte("2 hosts", "bf16") - ring_byte_between / 2),
        bucket_byte=max(0.0, a_byte("2 hosts", "bucketed") - ring_byte_between),
        barrier=without_bytes("2 ranks", "shared_memory", shared_byte) / 3, shared_byte=shared_byte)
    computing = {}
    for name, samples in part["samples"].items():
        few, many = (f"1 rank, {name}, {count} samples" for count in (samples // 4, samples))
        per_sample = (step[many] - step[few]) / (samples - samples // 4)
        computing[name] = Computing(step[many] - samples * per_sample, per_sample, part["cases"][many]["step_spread_s"])
    return constants, computing


def place_of(case, figures, cores, cables):
    """Where the ranks of a case are, from its name: `8 ranks, …` or `0.5 Gbit/s, …`."""
    count, unit = case.split(", ")[0].split(" ")
    if unit == "ranks":
        return Hosts(int(count), 1, cores, others=figures["others_cores"])
    return Hosts(2, 2, 1, cables[f"cable, {count} Gbit/s"]["bytes_per_s"], BURST, figures["others_cores"])


def compare(result):
    """Measured and predicted steps of all parts but that of the constants."""
    networks = networks_of(result)
    constants, computing = fit(result["parts"]["constants"])
    rows = []
    for part in [part for part in ("machine", "many", "hosts") if part in result["parts"]]:
        ran = result["parts"][part]
        for case, figures in ran["cases"].items():
            where, name, strategy = case.split(", ")
            predicted = scale_model.step_seconds(strategy, networks[name], computing[name], ran["samples"][name],
                                                 place_of(case, figures, ran["machine"]["cores"], result["parts"]["constants"]["cases"]), constants)
            rows.append({"part": part, "where": where, "model": name, "strategy": strategy, "measured_s": figures["step_s"],
                         "predicted_s": predicted, "ratio": predicted / figures["step_s"], "figures": figures})
    return rows


def buckets_table(result):
    """What `bucketed` takes beside `flat`, on hosts of one rank each, with the latency that was measured and (with a tenth of a ms)."""
    networks = networks_of(result)
    constants, computing = fit(result["parts"]["constants"])
    latencies = (constants, replace(constants, latency_between=1e-4))
    lines = ["| model | hosts | " + " | ".join(f"{bandwidth} Gbit/s" for bandwidth in BANDWIDTHS) + " |", "|---" * 5 + "|"]
    for name, samples in BATCH_OF_RANK.items():
        for hosts in (2, 4, 16):
            cells = []
            for bandwidth in BANDWIDTHS:
                place = Hosts(hosts, hosts, 1, bandwidth * 1e9 / 8)
                ratios = [scale_model.step_seconds("bucketed", networks[name], computing[name], samples, place, each)
                          / scale_model.step_seconds("flat", networks[name], computing[name], samples, place, each) for each in latencies]
                cells.append(f"{ratios[0]:.2f} ({ratios[1]:.2f})")
            lines.append(f"| `{name}` | {hosts} | " + " | ".join(cells) + " |")
    return lines


def three_digits(value):
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def milliseconds(seconds):
    return three_digits(1000 * seconds)


def steps_table(rows):
    """A line for each place and model, measured / predicted by strategy; what is beyond the tolerance is bold."""
    used = [strategy for strategy in STRATEGIES if any(row["strategy"] == strategy for row in rows)]
    lines = ["| where | model | " + " | ".join(f"`{name}`" if name != "bf16" else "`flat`, sent in bf16" for name in used) + " |",
             "|---" * (len(used) + 2) + "|"]
    for where, name in dict.fromkeys((row["where"], row["model"]) for row in rows):
        cells = []
        for strategy in used:
            row = next((row for row in rows if (row["where"], row["model"], row["strategy"]) == (where, name, strategy)), None)
            text = f"{milliseconds(row['measured_s'])} / {milliseconds(row['predicted_s'])}" if row else ""
            cells.append(f"**{text}**" if row and abs(row["ratio"] - 1) > TOLERANCE else text)
        lines.append(f"| {where} | `{name}` | " + " | ".join(cells) + " |")
    return lines


def within(rows):
    inside = sum(abs(row["ratio"] - 1) <= TOLERANCE for row in rows)
    least, most = min(row["ratio"] for row in rows), max(row["ratio"] for row in rows)
    others = sorted(row["figures"]["others_cores"] for row in rows)[len(rows) // 2]
    return (f"{inside} of {len(rows)} predictions are within 20 %; they are {least:.2f} to {most:.2f} times what was measured. Beside "
            f"the ranks, other programs kept {others:.1f} cores busy (median of the runs)")


def quiet_ones(rows):
    quiet = [row for row in rows if row["figures"]["others_cores"] < QUIET]
    return (f"{sum(abs(row['ratio'] - 1) <= TOLERANCE for row in quiet)} of the {len(quiet)} runs beside which less than {QUIET} "
            "cores were busy are among them")


def growth_table(rows):
    lines = ["| ranks | first step after | largest process | all processes together |", "|---|---|---|---|"]
    for row in [row for row in rows if row["model"] == "net" and row["strategy"] == "shared_memory" and row["part"] != "hosts"]:
        figures = row["figures"]
        lines.append(f"| {row['where'].split()[0]} | {figures['startup_s']:.2g} s | {figures['largest_process_bytes'] / 1e6:.0f} MB | "
                     f"{figures['all_processes_bytes'] / 1e9:.2g} GB |")
    return lines


def gpu_tables(networks):
    lines = []
    for network in networks.values():
        lines += ["", f"`{network.name}`, {network.gradient_bytes / 1e6:.3g} MB of gradients, weak scaling with "
                  f"{scale_gpus.WEAK_BATCH[network.name]} samples a GPU, strong scaling with {scale_gpus.STRONG_BATCH:,} in all:", "",
                  "| GPUs | weak: step | efficiency | limited by | eager, `bucketed` | strong: step | efficiency | limited by | "
                  "eager, `bucketed` |", "|---" * 9 + "|"]
        for gpus in scale_gpus.GPUS:
            cells = []
            for entry in scale_gpus.scaling(network, gpus).values():
                cells += [f"{1e6 * entry['flat_s']:,.0f} µs", f"{100 * entry['efficiency']:.0f} %", entry["limit"],
                          f"{1e6 * entry['bucketed_s']:,.0f} µs"]
            lines.append(f"| {gpus:,} | " + " | ".join(cells) + " |")
    return lines


def where_it_ran(part):
    processor = part["machine"]["processor"]
    return (f"`{part['command']}`, commit {part['commit']}, {part['date']}, {processor['name']} family {processor['family']} "
            f"model {processor['model']}, {part['machine']['cores']} cores, "
            f"load before {part['machine']['load_average']['before'][0]:.1f}")


def page(result):
    rows = compare(result)
    constants, computing = fit(result["parts"]["constants"])
    by_part = {part: [row for row in rows if row["part"] == part] for part in ("machine", "many", "hosts")}
    lines = ["# Scaling: measured in the small, predicted in the large", "",
             "<!-- written by scripts/bench/scale; do not edit -->", "",
             "- [One machine](#one-machine), [two hosts](#two-hosts): measured, beside what the model says",
             "- [The model](#the-model), [buckets or one buffer](#buckets-or-one-buffer)", "- [8 to 1,024 GPUs](#8-to-1024-gpus): predicted; no such machine was measured", "",
             "Steps are milliseconds, measured / predicted; a prediction that is off by more than a fifth is bold. A rank and step has "
             + ", ".join(f"{samples} samples of `{name}`" for name, samples in result["parts"]["constants"]["samples"].items())
             + ", in fp32, one thread a rank."]
    if by_part["machine"]:
        lines += ["", "## One machine", "", f"{where_it_ran(result['parts']['machine'])}.", "",
                  f"{within(by_part['machine'])}. {quiet_ones(by_part['machine'])}. Where others keep cores busy, all ranks wait for "
                  "whichever is not running, for longer than the model counts; and it adds up to two fifths too much to `mlp` by `flat` "
                  "where ranks share cores.", "", *steps_table(by_part["machine"])]
    if by_part["many"]:
        lines += ["", f"More ranks than cores by far, to see that it works ({where_it_ran(result['parts']['many'])}); "
                  f"{within(by_part['many'])}.", "", *steps_table(by_part["many"])]
    lines += ["", "Start-up and memory of `net` with `shared_memory`; what processes share counts once in what they take together:", "",
              *growth_table(rows)]
    if by_part["hosts"]:
        lines += ["", "## Two hosts", "", "Two network namespaces of one machine with one rank each, joined by a cable whose bandwidth "
                  f"is limited in both directions ({where_it_ran(result['parts']['hosts'])}).", "",
                  f"{within(by_part['hosts'])}.", "", *steps_table(by_part["hosts"])]
    lines += ["", "## The model", "", *MODEL_TEXT, "",
              f"Its constants ({where_it_ran(result['parts']['constants'])}):", "", "| constant | value |", "|---|---|"]
    for name, meaning, scale, unit in CONSTANT_NAMES:
        lines.append(f"| {meaning} | {three_digits(scale * getattr(constants, name))} {unit} |")
    for name, value in computing.items():
        lines.append(f"| computing a step of `{name}` on a rank alone | {1000 * value.fixed:.3g} ms + "
                     f"{1e6 * value.per_sample:.3g} µs a sample, ± {1000 * value.spread:.2g} ms |")
    lines += ["", "## Buckets or one buffer", "", *BUCKETS_TEXT, "", *buckets_table(result)]
    lines += ["", "## 8 to 1,024 GPUs", "", "**No such machine was measured, and no GPU has run this program so far.** The tables are "
              "what the model says with published figures, for machines of eight H100s. Steps are captured, in bf16, and average by `flat` "
              "in fp32, unless they are eager and `bucketed`; efficiency is that of `flat` beside one GPU.", "",
              "![Efficiency by number of GPUs, weak and strong scaling, predicted](scale.svg)", "", "It comes from", "",
              *(f"- {source}" for source in scale_gpus.SOURCES), *gpu_tables(networks_of(result)), "", *GPU_TEXT]
    return "\n".join(lines) + "\n"


CONSTANT_NAMES = (
    ("latency", "a step of a ring on one machine, a core for each rank", 1e6, "µs"),
    ("latency_between", "a step of a ring between two hosts", 1e6, "µs"),
    ("latency_crowded", "where ranks share cores", 1e6, "µs"),
    ("ring_byte", "a byte of gradients through a ring on one machine", 1e9, "ns"),
    ("ring_byte_between", "between two hosts", 1e9, "ns"),
    ("compress_byte", "besides, where it is sent in bf16", 1e9, "ns"),
    ("bucket_byte", "besides, in buckets", 1e9, "ns"),
    ("barrier", "a barrier of `shared_memory`", 1e6, "µs"),
    ("shared_byte", "a byte of gradients through `shared_memory`", 1e9, "ns"),
)

MODEL_TEXT = (
    "A step ([scale_model.py](../../../lib/bench/scale_model.py)) is what a rank computes, times the ranks that share a core, plus what "
    "averaging adds, plus what the slowest rank is expected to take beyond the mean. `flat` adds a ring behind backward: "
    "2 (n - 1) steps, each with a latency, and 2 (n - 1) / n times the gradients' bytes at the cable's rate, or as long as the cores "
    "are busy with them if that is longer. `bucketed` sends each of the Reducer's buckets when backward has reached it, one behind the "
    "other, and what is still to compute hides it. `shared_memory` adds bytes and three barriers. Other programs that "
    "kept cores busy during a run count as ranks that share them.",
    "",
    "The constants are made from steps of one rank, and of two networks of linear layers (51 kB and 6.5 MB of gradients) that are not "
    "among those predicted: on two ranks, on four that share two cores, and on two hosts with a cable without limit. The rates of the "
    "limited cables are those at which plain sockets exchange some megabytes over them.",
    "",
    "After a first comparison three things were added that it showed to be missing: the load of other programs, the 64 kB that a limited "
    "cable lets pass at once, and that a step of a ring waits once for a shared core, however many ranks share it. No constant was fitted "
    "to what is predicted.",
)
BUCKETS_TEXT = (
    "What `bucketed` takes, as a multiple of `flat`, on hosts with one rank each and the shipped configs' batches; predicted with the "
    "latency that was measured here, where two hosts share a machine, and in brackets with 0.1 ms. More than two hosts were not measured. "
    "The 45 MB of `resnet18` gain up to a fifth where the network is slow, and lose nothing where it is not. With less than 25 MB, of "
    "which nearly all is in one layer or two, little is left to compute when the bucket is full, and each bucket and the statistics are "
    "rings of their own, whose latencies grow with the hosts. So `auto` takes buckets from 25 MB on, and the model agrees; "
    "`net` on two hosts is worth a try with `--set gradient_averaging.strategy=bucketed`.",
)
GPU_TEXT = (
    "What would limit them: `net`, `lenet` and `mlp` are limited by the time that small operations take, whatever they compute, and on "
    "many machines by the latency of averaging; a batch of 128 of them is worth one GPU. `resnet18` is limited by arithmetic as long "
    "as a GPU has 32 samples or more.",
    "",
    "What `auto` should take: `flat` in a captured step for the small networks, by far. For `resnet18` with 256 samples a GPU the model "
    "gives `bucketed` 4 to 6 % less, with 64 a GPU on 128 GPUs 15 % less, partly because it sends gradients in the bf16 in which they were "
    "computed. It hangs on the assumed 6 µs a launch: with 10 µs the captured step wins at 64 samples a GPU. So `auto` keeps the captured "
    "step; `gradient_averaging.strategy` is what to try first on such a machine.",
)


def chart(left, kind, networks):
    """SVG lines of the efficiency by GPUs."""
    width, height, top = 280, 200, 64
    first, last = math.log2(scale_gpus.GPUS[0]), math.log2(scale_gpus.GPUS[-1])

    def point(gpus, efficiency):
        return left + width * (math.log2(gpus) - first) / (last - first), top + height * (1 - efficiency)

    title = "weak scaling: the batch a GPU is kept" if kind == "weak" else f"strong scaling: {scale_gpus.STRONG_BATCH:,} samples in all"
    lines = [f'<text x="{left}" y="{top - 14}" font-weight="bold">{escape(title)}</text>']
    for percent in (0, 25, 50, 75, 100):
        _, y = point(scale_gpus.GPUS[0], percent / 100)
        lines.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for gpus in scale_gpus.GPUS:
        x, _ = point(gpus, 0)
        lines.append(f'<text x="{x:.1f}" y="{top + height + 16}" text-anchor="middle">{gpus}</text>')
    for network in networks.values():
        points = [point(gpus, scale_gpus.scaling(network, gpus)[kind]["efficiency"]) for gpus in scale_gpus.GPUS]
        lines.append(f'<polyline fill="none" stroke="{COLORS[network.name]}" stroke-width="2" points="'
                     + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')
    return lines


def draw(result):
    networks = networks_of(result)
    lines = chart(50, "weak", networks) + chart(410, "strong", networks)
    for number, name in enumerate(networks):
        x = 50 + number * 90
        lines += [f'<rect x="{x}" y="292" width="14" height="4" fill="{COLORS[name]}"/>', f'<text x="{x + 20}" y="298">{name}</text>']
    title = "Predicted, not measured: efficiency by number of H100s beside one, eight a machine"
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="310" font-family="sans-serif" font-size="12">',
        '<rect width="720" height="310" fill="white"/>', f'<text x="8" y="20">{escape(title)}</text>', *lines, "</svg>"]) + "\n"


def write(result, path):
    path.with_suffix(".md").write_text(page(result))
    path.with_suffix(".svg").write_text(draw(result))
