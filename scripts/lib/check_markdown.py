#!/usr/bin/env python3
"""Checks the repository's Markdown files.

usage: check_markdown.py [REPOSITORY]

Finds relative links and images whose target does not exist, anchors (#...) without a matching heading, and a README.md that
is too long. Prints FILE:LINE: MESSAGE for each finding; exits 1 if there are any.
"""

import re
from urllib.parse import unquote

from check_layers import run_check

MAX_README_LINES = 150
MAX_README_COLUMNS = 120
SKIPPED_FOLDERS = {"build", "node_modules"}
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$")
HTML = re.compile(r"<(?:img|a|source)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")


def markdown_files(repository):
    for path in sorted(repository.rglob("*.md")):
        parts = path.relative_to(repository).parts
        if not any(part.startswith(".") or part in SKIPPED_FOLDERS for part in parts):
            yield path


def lines_of_prose(path):
    """Yields (number, line) outside fenced code, with inline code blanked."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"(`+).+?\1", lambda code: "`" * len(code[0]), line)


def anchor(heading):
    """Returns the anchor that GitHub generates for a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    found, fenced = {}, False
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        match = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if match and not fenced:
            name = anchor(match[1])
            found[name] = found.get(name, -1) + 1
    names = {name if number == 0 else f"{name}-{number}" for name, count in found.items() for number in range(count + 1)}
    explicit = re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", path.read_text(encoding="utf-8"))
    return names | set(explicit)


def check_link(path, target):
    """Returns an error message if the link from `path` to `target` is broken; None if it is valid or external."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    name, _, fragment = target.partition("#")
    goal = (path.parent / unquote(name)).resolve() if name else path
    if not goal.exists():
        return f"{target}: file not found"
    if fragment and goal.suffix == ".md" and unquote(fragment) not in anchors(goal):
        return f"{target}: no such heading in {goal.name}"
    return None


def check_file(path):
    for number, line in lines_of_prose(path):
        for target in (*LINK.findall(line), *REFERENCE.findall(line), *HTML.findall(line)):
            message = check_link(path, target)
            if message:
                yield number, message


def check_size(readme):
    lines = readme.read_text(encoding="utf-8").splitlines()
    if len(lines) > MAX_README_LINES:
        yield len(lines), f"{len(lines)} lines exceed the limit of {MAX_README_LINES}: move details to the README of the folder they describe"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_README_COLUMNS:
            yield number, f"{len(line)} columns exceed the limit of {MAX_README_COLUMNS}"


def check_repository(repository):
    """Yields all findings as (path, line, message)."""
    for path in markdown_files(repository):
        for number, message in check_file(path):
            yield path, number, message
    for number, message in check_size(repository / "README.md"):
        yield repository / "README.md", number, message


if __name__ == "__main__":
    run_check(check_repository)
