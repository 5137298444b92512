"""A bar for each side's whole command and its seconds an epoch, as SVG."""

from html import escape

WIDTH, BAR, LEFT, RIGHT = 760, 18, 300, 70
COLORS = {"ours": "#1668c2", "ddp": "#b0413e", "best": "#d9932f", "jax": "#4b8b3b", "inductor": "#7a5ea8", "inductor_ddp": "#a58cc9"}
OPACITY = {"bf16": 1, "fp32": 0.6}


def bars(title, rows, top):
    """SVG lines of one group and the height it takes."""
    longest = max(value for _, _, value in rows)
    scale = (WIDTH - LEFT - RIGHT) / longest
    lines = [f'<text x="8" y="{top + 16}" font-weight="bold">{escape(title)}</text>']
    for number, (side, what, value) in enumerate(rows):
        y = top + 26 + number * (BAR + 4)
        width = max(value * scale, 1)
        peer, precision = side.rsplit("_", 1)
        lines.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(what)}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLORS[peer]}" opacity="{OPACITY[precision]}"/>')
        lines.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 13}">{value:.3g} s</text>')
    return lines, 36 + len(rows) * (BAR + 4)


def draw(result):
    lines, top = [], 34
    for name, case in result["cases"].items():
        for key, label in (("wall_seconds", "start to exit"), ("epoch_seconds", "an epoch of training")):
            rows = [(side, figures["what"], figures[key]["median"]) for side, figures in case["sides"].items()]
            group, height = bars(f"{name}: {label}", rows, top)
            lines += group
            top += height
    title = f"{result['what']}; {result['machine']['processor']['name'] if result['device'] == 'cpu' else result['device']}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{top}" fill="white"/>', f'<text x="8" y="20">{escape(title)}</text>', *lines, "</svg>"]) + "\n"
