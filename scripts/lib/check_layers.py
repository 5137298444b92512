#!/usr/bin/env python3
"""Checks that the layers of src/ comply with the table in src/README.md.

usage: check_layers.py [REPOSITORY]

Finds includes of layers that the table does not allow, torch in a layer that must not use it, c10d outside its two
layers, and files and functions that are too long. Prints FILE:LINE: MESSAGE for each finding; exits 1 if there are any.
"""

import collections
import re
import sys
from pathlib import Path

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
C10D_LAYERS = {"comm", "cuda"}
TORCH_HEADERS = re.compile(r"(torch|ATen|c10|caffe2|cuda_runtime|nccl|gloo)[/_.]")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


Layer = collections.namedtuple("Layer", "name may_include torch")


def read_table(readme):
    """Returns the layers of the table by name, in table order. `may include` is a list of layers or "–"."""
    layers = {}
    for line in readme.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        match = re.fullmatch(r"`(\w+)/`", cells[0])
        if match and len(cells) == 4:
            may_include = set() if cells[2] == "–" else set(re.split(r",\s*", cells[2]))
            layers[match[1]] = Layer(match[1], may_include, cells[3] == "yes")
    return layers


def without_comments(text):
    """Returns the lines with comments blanked."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match[0]) if match[0].startswith("/") else match[0]

    token = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(token, blank, text, flags=re.DOTALL)


def check_includes(layer, layers, lines):
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quoted, path = match[1] == '"', match[2]
        if not quoted:
            if not layer.torch and TORCH_HEADERS.match(path):
                yield number, f"<{path}> in {layer.name}/, which must not use torch"
            continue
        target = path.split("/")[0]
        if "/" not in path or target not in layers:
            yield number, f'"{path}" is not relative to src/ (layer/file.h)'
        elif target != layer.name and target not in layer.may_include:
            allowed = ", ".join(sorted(layer.may_include)) or "nothing"
            yield number, f'"{path}": {layer.name}/ may include {allowed}'


def check_c10d(layer, lines):
    if layer.name in C10D_LAYERS:
        return
    for number, line in enumerate(lines, 1):
        if re.search(r"\bc10d\b", line):
            yield number, f"uses c10d, which only {' and '.join(sorted(C10D_LAYERS))} may use"


def check_lengths(lines):
    if len(lines) > MAX_FILE_LINES:
        yield len(lines), f"{len(lines)} lines exceed the limit of {MAX_FILE_LINES}: split the file"
    # In formatted code, a function starts with a line that ends in { and ends with } at the same indentation.
    start, indent = 0, ""
    for number, line in enumerate(lines, 1):
        opening = re.match(r"( {0,2})\S.*\{$", line)
        if not start and opening and not re.match(
            r"\s*(inline )?(namespace|class|struct|enum|union|extern|export|return)\b", line
        ):
            start, indent = number, opening[1]
        elif start and re.match(indent + r"\}", line):
            if number - start + 1 > MAX_FUNCTION_LINES:
                yield start, f"{number - start + 1} lines in one function exceed the limit of {MAX_FUNCTION_LINES}"
            start = 0


def check_table(layers):
    above = set()
    for layer in layers.values():
        unknown = sorted(layer.may_include - set(layers))
        if unknown:
            yield f"{layer.name}/ may include unknown layers: {', '.join(unknown)}"
        elif layer.may_include - above:
            below = ", ".join(sorted(layer.may_include - above))
            yield f"{layer.name}/ may include {below}, which is further down in the table"
        above.add(layer.name)


def check_repository(repository):
    """Yields all findings as (path, line, message)."""
    source_folder = repository / "src"
    readme = source_folder / "README.md"
    layers = read_table(readme)
    if not layers:
        yield readme, 1, "has no table of layers"
    for message in check_table(layers):
        yield readme, 1, message
    for path in sorted(source_folder.glob("*/")):
        if path.is_dir() and path.name not in layers:
            yield path, 1, "is not in the table of layers"
    for path in sorted(source_folder.glob("**/*.*")):
        layer = layers.get(path.relative_to(source_folder).parts[0])
        if path.suffix not in {".h", ".cpp", ".cu"} or not layer:
            continue
        text = path.read_text(encoding="utf-8")
        code = without_comments(text).splitlines()
        for check in (
            check_includes(layer, layers, code),
            check_c10d(layer, code),
            check_lengths(text.splitlines()),
        ):
            for number, message in check:
                yield path, number, message


def run_check(check):
    """Prints the findings of `check` in the repository of the first argument (default: this one), and exits."""
    default = Path(__file__).resolve().parents[2]
    repository = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else default
    findings = list(check(repository))
    for path, number, message in findings:
        print(f"{(repository / path).relative_to(repository)}:{number}: {message}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    run_check(check_repository)
