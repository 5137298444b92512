#!/usr/bin/env python3
"""Checks the names of src/.

usage: check_names.py [REPOSITORY]

Prints one line for each finding, as FILE:LINE: MESSAGE, and exits 1 if there is any:
two types with one name (forward declarations and specialisations excepted), and variables and parameters named like a layer
of src/README.md's table, since layers are namespaces. Data members of structs may have such a name, as config.train has its
key's: they are always used through an object.
"""

import re

from check_layers import read_table, run_check, without_comments

TYPE = re.compile(
    r"^(?P<template>\s*template\s*<>\s*)?\s*(?:class|struct|union|enum(?:\s+class|\s+struct)?)\s+"
    r"(?:\[\[\w+\]\]\s+|alignas\([^)]*\)\s+)?(?:\w+::)*(?P<name>[A-Za-z_]\w*)(?P<rest>.*)$"
)
# Words in front of a name that make it something else than a variable.
NO_TYPES = {"return", "namespace", "using", "goto", "case", "new", "delete", "throw", "else", "class", "struct", "enum",
            "typename", "co_return", "co_await", "co_yield", "not", "and", "or", "in"}


def type_names(lines):
    """(line number, name) of every class, struct, union and enum that these lines define."""
    for number, line in enumerate(lines, 1):
        match = TYPE.match(line)
        if not match or match["template"]:
            continue
        rest = match["rest"].strip() or (lines[number].strip() if number < len(lines) else "")
        is_declaration = rest.endswith(";") and "{" not in rest
        if rest.startswith((":", "{", "final")) and not is_declaration:  # nor a specialisation, or a variable of the type
            yield number, match["name"]


def check_types(sources):
    """`sources` maps each path to its lines without comments."""
    first = {}
    for path, lines in sources.items():
        for number, name in type_names(lines):
            if name in first:
                other, other_number = first[name]
                yield path, number, f"a second type {name}; the first is in {other}:{other_number}"
            else:
                first[name] = (path, number)


def check_shadows(lines, names):
    """Variables, parameters, members of classes and structured bindings that have one of `names`."""
    word = "|".join(sorted(names))
    declared = re.compile(rf"(?P<before>\w+)(?:[>&*\])]*[>&*\]])?(?:\s+[&*]*|[&*]+\s*)\b(?P<name>{word})\s*(?=[=;,){{\[]|:(?!:)|$)")
    bound = re.compile(rf"\bauto\s*&?&?\s*\[[^\]]*\b(?P<name>{word})\b[^\]]*\]")
    struct_indent = None  # of the struct around this line
    for number, line in enumerate(lines, 1):
        line = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
        indent = len(line) - len(line.lstrip())
        if re.match(r"\s*struct\b.*{\s*$", line):
            struct_indent = indent
        elif struct_indent is not None and indent <= struct_indent and line.strip():
            struct_indent = None
        is_data_member = struct_indent is not None and indent == struct_indent + 2 and "(" not in line
        if is_data_member or re.match(r"\s*(#|using\b|namespace\b)", line):
            continue
        for match in declared.finditer(line):
            if match["before"] not in NO_TYPES:
                yield number, f"{match['name']} is the name of a layer's namespace"
        for match in bound.finditer(line):
            yield number, f"{match['name']} is the name of a layer's namespace"


def check_repository(repository):
    """All findings as (path, line, message)."""
    source_folder = repository / "src"
    names = set(read_table(source_folder / "README.md"))
    code = {path.relative_to(repository): without_comments(path.read_text(encoding="utf-8")).splitlines()
            for path in sorted(source_folder.glob("**/*.*")) if path.suffix in {".h", ".cpp"}}
    yield from check_types(code)
    for path, lines in code.items():
        for number, message in check_shadows(lines, names):
            yield path, number, message


if __name__ == "__main__":
    run_check(check_repository)
