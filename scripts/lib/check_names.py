#!/usr/bin/env python3
"""Checks the names and the comments of src/.

usage: check_names.py [REPOSITORY]

Prints one line for each finding, as FILE:LINE: MESSAGE, and exits 1 if there is any:
two types of one name (forward declarations and specialisations excepted), variables and parameters named like a layer of
src/README.md's table, which are namespaces, and doc comments of headers (///) that are no whole sentences. Data members of
structs may have such a name, as config.train has its key's: they are always used through an object.
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
# A sentence that begins with one of these has its verb in another sentence, unless it has one of its own.
FRAGMENT_BEGINNINGS = ("Of", "To", "As", "Who", "Whose", "Also", "Or", "And", "Else", "By", "In", "From")
VERBS = re.compile(
    r"\b(is|are|was|were|be|has|have|had|do|does|did|can|cannot|could|may|might|must|shall|should|will|would|"
    r"add|adds|allows?|appl(y|ies)|asks?|averages?|becomes?|begins?|calls?|carr(y|ies)|checks?|comes?|computes?|contains?|"
    r"costs?|counts?|creates?|decides?|depends?|describes?|ends?|exits?|expects?|fails?|finds?|follows?|gets?|gives?|go|goes|"
    r"holds?|ignores?|joins?|keeps?|knows?|lasts|leaves?|lists?|listens?|loads?|logs?|looks?|makes?|maps?|matches|means?|"
    r"moves?|names?|needs?|notices?|opens?|owns?|passes|prints?|puts?|raises?|reads?|receives?|records?|refuses?|"
    r"remains?|replaces?|reports?|returns?|runs?|saves?|says?|sees?|selects?|sends?|sets?|shares?|shows?|sits?|skips?|sleeps?|"
    r"stands?|starts?|stays?|stops?|stores?|takes?|tells?|throws?|travels?|tr(y|ies)|updates?|uses?|visits?|waits?|"
    r"wants?|works?|writes?|yields?)\b"
)
MIN_WORDS = 4


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


def doc_comments(lines):
    """(line number, text) of every block of /// lines."""
    block, first = [], 0
    for number, line in enumerate([*lines, ""], 1):
        match = re.match(r"\s*///(?!/)\s?(.*)", line)
        if match:
            first = first or number
            block.append(match[1])
        elif block:
            yield first, "\n".join(block)
            block, first = [], 0


def prose_of(text):
    """The comment without its examples: fenced and indented lines."""
    text = re.sub(r"```.*?(```|\Z)", "", text, flags=re.DOTALL)
    return " ".join(line.strip() for line in text.split("\n") if not line.startswith("  ")).strip()


def is_fragment(sentence):
    if not re.match(rf"({'|'.join(FRAGMENT_BEGINNINGS)})\b", sentence):
        return False
    main_clause = re.sub(r"\b(that|which|who|whose|where|when|while|as)\b[^,;:]*", "", sentence.split(" ", 1)[-1])
    return not VERBS.search(main_clause)


def check_comments(lines):
    for number, text in doc_comments(lines):
        prose = prose_of(text)
        if not prose:
            continue
        if not re.search(r"[.:!?][)\"'`]*$", prose):
            yield number, f"a doc comment without a full stop: {prose[-60:]}"
        if len(prose.split()) < MIN_WORDS:
            yield number, f"a doc comment that is no sentence: {prose}"
            continue
        for sentence in re.split(r"(?<=[.!?]) +(?=[A-Z])", prose):
            if is_fragment(sentence):
                yield number, f"a doc comment that is no sentence: {sentence}"
                break


def check_repository(repository):
    """All findings as (path, line, message)."""
    source_folder = repository / "src"
    names = set(read_table(source_folder / "README.md"))
    texts = {path.relative_to(repository): path.read_text(encoding="utf-8")
             for path in sorted(source_folder.glob("**/*.*")) if path.suffix in {".h", ".cpp"}}
    code = {path: without_comments(text).splitlines() for path, text in texts.items()}
    yield from check_types(code)
    for path, lines in code.items():
        for number, message in check_shadows(lines, names):
            yield path, number, message
        if path.suffix == ".h":
            for number, message in check_comments(texts[path].splitlines()):
                yield path, number, message


if __name__ == "__main__":
    run_check(check_repository)
