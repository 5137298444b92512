#!/usr/bin/env python3
"""Generates the tables of keys in configs/README.md from the output of `mnist-train config-schema`.

usage: config_keys.py [--update] [MNIST_TRAIN]

Without --update, exits 1 if the tables are outdated. MNIST_TRAIN is the program (default: build/bin/mnist-train).
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "configs" / "README.md"
BEGIN, END = "<!-- keys: written by scripts/lib/config_keys.py --update; do not edit -->", "<!-- end of keys -->"
NO_LIMIT = 2**31 - 1  # limits of the program's integer types are not shown


def read_schema(program):
    done = subprocess.run([program, "config-schema"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def resolved(rule, schema):
    """Returns the definition that the rule refers to, or else the rule itself."""
    return schema["$defs"][rule["$ref"].rsplit("/", 1)[1]] if "$ref" in rule else rule


def alternatives(rule):
    """Returns the non-null alternatives of the rule's nested anyOf, or else the rule itself."""
    if "anyOf" in rule:
        return [one for inner in rule["anyOf"] for one in alternatives(inner)]
    return [] if rule.get("type") == "null" else [rule]


def code(value):
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def number(value):
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def range_text(rule):
    """Returns text such as "from 0", "above 0", "from 0 to 1", "from 0, below 1"; empty without limits."""
    low = rule.get("minimum", rule.get("exclusiveMinimum"))
    high = rule.get("maximum", rule.get("exclusiveMaximum"))
    texts = []
    if low is not None and low > -NO_LIMIT:
        texts.append(f"{'from' if 'minimum' in rule else 'above'} {number(low)}")
    if high is not None and high < NO_LIMIT:
        texts.append(f"{'to' if 'maximum' in rule else 'below'} {number(high)}")
    separator = " " if "minimum" in rule and "maximum" in rule else ", "
    return (" " if texts else "") + separator.join(texts)


def value_text(rule):
    """Describes the values of one alternative."""
    if "const" in rule:
        return f"`{rule['const']}`"
    if "enum" in rule:
        return ", ".join(f"`{value}`" for value in rule["enum"])
    if "$ref" in rule:
        return "a list of " + rule["$ref"].rsplit("/", 1)[1]
    kind = rule["type"]
    if kind == "entry":
        return f"names and objects, [see below](#entries-of-{rule['path'].replace('.', '')})"
    if kind == "array":
        count = rule.get("maxItems")
        items = " or ".join(value_text(one) for one in alternatives(rule["items"]))
        return f"a list of {count} × ({items})" if count and count == rule.get("minItems") else f"a list of: {items}"
    if kind == "object" and "properties" not in rule:
        return "an object"
    if kind == "object":
        return "`{" + ", ".join(f'"{name}"' for name in rule["properties"]) + "}`"
    words = {"string": "text", "boolean": "`true`, `false`", "integer": "an integer", "number": "a number"}
    return words[kind] + range_text(rule)


def takes_text(rule):
    texts = [value_text(one) for one in alternatives(rule)]
    return " or ".join(dict.fromkeys(texts))


def default_text(rule, is_required):
    if is_required:
        return "required"
    if "default" not in rule:
        return ""
    return "none" if rule["default"] is None else code(rule["default"])


def row(name, rule, is_required=False):
    cells = (f"`{name}`", takes_text(rule), default_text(rule, is_required), rule.get("description", ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def is_group(rule):
    return rule.get("type") == "object" and "properties" in rule


def rows_of(properties, prefix="", required=()):
    """Returns the rows of all keys, nested ones with their path as in --set."""
    for name, rule in properties.items():
        if name == "$schema":
            continue
        if not is_group(rule):
            yield row(prefix + name, rule, name in required)
        for one in alternatives(rule):
            if is_group(one):
                yield from rows_of(one["properties"], f"{prefix}{name}.", one.get("required", ()))


def entries_of(rule):
    """Returns the kinds of entries in a list such as data.augment: objects with a fixed name."""
    items = alternatives(rule.get("items", {"type": "null"}))
    return [item for item in items if is_group(item) and "const" in item["properties"].get("name", {})]


def entry_lists_of(rule, schema):
    """Returns the alternatives of a rule that are lists of such entries."""
    lists = [resolved(one, schema) for one in alternatives(rule)]
    return [one for one in lists if one.get("type") == "array" and entries_of(one)]


def lists_of_entries(properties, schema, prefix=""):
    """Yields (path, rule) of every key that is a list of such entries."""
    for name, rule in properties.items():
        if is_group(rule):
            yield from lists_of_entries(rule["properties"], schema, f"{prefix}{name}.")
        else:
            for one in entry_lists_of(rule, schema):
                yield prefix + name, one


def short(rule, path, schema):
    """Returns the rule without the entries of lists such as data.augment, which have separate tables."""
    if is_group(rule):
        return rule | {"properties": {name: short(inner, f"{path}.{name}", schema)
                                      for name, inner in rule["properties"].items()}}
    if entry_lists_of(rule, schema):
        return {key: value for key, value in rule.items() if key in ("description", "default")} | {
            "type": "array", "items": {"type": "entry", "path": path}}
    return rule


def table(rows, first="key"):
    return [f"| {first} | takes | default | meaning |", "|---|---|---|---|", *rows, ""]


def make(schema):
    """Returns the Markdown lines between the marks."""
    properties = {name: short(rule, name, schema) for name, rule in schema["properties"].items()}
    groups = {name: rule for name, rule in properties.items() if is_group(rule)}
    flat = {name: rule for name, rule in properties.items() if name not in groups}
    lines = ["### At the top level", "", *table(rows_of(flat))]
    for name, rule in groups.items():
        lines += [f"### `{name}`", "", rule.get("description", ""), "", *table(rows_of({name: rule}))]
    for path, rule in lists_of_entries(schema["properties"], schema):
        lines += [f"### Entries of `{path}`", ""]
        keys = [{key: value for key, value in entry["properties"].items() if key != "name"}
                for entry in entries_of(rule)]
        common = {key: value for key, value in keys[0].items() if all(own.get(key) == value for own in keys)}
        rows = [row(f"all: {key}", value) for key, value in common.items()]
        for entry, own in zip(entries_of(rule), keys):
            name = entry["properties"]["name"]["const"]
            rows += [row(f"{name}: {key}", value, key in entry.get("required", ()))
                     for key, value in own.items() if key not in common] or [f"| `{name}` | | | |"]
        lines += table(rows, first="entry and key")
    return lines


def replaced(text, lines):
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return before + BEGIN + "\n\n" + "\n".join(lines) + END + after


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--update"]
    program = arguments[0] if arguments else ROOT / "build" / "bin" / "mnist-train"
    text = README.read_text(encoding="utf-8")
    current = replaced(text, make(read_schema(program)))
    if "--update" in sys.argv:
        README.write_text(current, encoding="utf-8")
    elif current != text:
        print("configs/README.md: the tables are outdated; run scripts/lib/config_keys.py --update")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
