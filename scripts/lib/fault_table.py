#!/usr/bin/env python3
"""The table of faults in tests/README.md: its rows stand in tests/faults.json, its results come from test runs.

usage: fault_table.py                         checks that the table has the rows and that every test in them exists
       fault_table.py --update RESULTS.xml…   writes the table from JUnit files of pytest and of the Catch executables:
                                              pytest --junitxml=FILE …, mnist-train-tests -r junit -o FILE

A row is a fault, what then happens, and the tests that show it: FILE::FUNCTION for tests in Python (tests/*/FILE_test.py),
the name of the case for tests in C++. A test that failed is no result to publish: then nothing is written.
"""

import json
import re
import sys
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = Path("tests/README.md")
BEGIN, END = "<!-- faults: written by scripts/lib/fault_table.py -->", "<!-- end of faults -->"


def read_rows(root):
    return [tuple(row) for row in json.loads((root / "tests" / "faults.json").read_text(encoding="utf-8"))]


def existing_tests(root):
    names = set()
    for path in (root / "tests").glob("*/*_test.py"):
        for function in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            names.add(f"{path.stem.removesuffix('_test')}::{function}")
    for path in (root / "tests").glob("*/*_test.cpp"):
        text = path.read_text(encoding="utf-8")
        names.update(name.replace('\\"', '"') for name in re.findall(r'TEST_CASE\("((?:[^"\\]|\\.)*)"', text))
    return names


def read_results(paths):
    """test -> {"passed": count, "failed": count, "skipped": [reasons]}."""
    results = {}
    for path in paths:
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            name, place = case.get("name"), case.get("classname", "")
            if name.startswith("test_"):
                name = f"{place.split('.')[-1].removesuffix('_test')}::{name.split('[')[0]}"
            else:
                name = name.split("/")[0]
            result = results.setdefault(name, {"passed": 0, "failed": 0, "skipped": []})
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                result["failed"] += 1
            elif skipped is not None:
                result["skipped"].append(skipped.get("message", ""))
            else:
                result["passed"] += 1
    return results


def result_text(tests, results):
    missing = [test for test in tests if test not in results]
    failed = [test for test in tests if results.get(test, {}).get("failed")]
    if missing or failed:
        raise SystemExit(f"not run: {missing}\nfailed: {failed}")
    passed = sum(results[test]["passed"] for test in tests)
    reasons = sorted({reason for test in tests for reason in results[test]["skipped"]})
    return f"{passed} passed" + (f"; not here: {', '.join(reasons)}" if reasons else "")


def table(rows, results):
    lines = ["| fault | what happens | tests |", "|---|---|---|"]
    lines += [f"| {fault} | {promise} | {result_text(tests, results)} |" for fault, promise, tests in rows]
    return "\n".join(lines)


def split_readme(root):
    text = (root / README).read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{README} has no place for the table: {BEGIN} … {END}")
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside, after


def findings(root):
    rows, known = read_rows(root), existing_tests(root)
    for fault, _, tests in rows:
        if not tests:
            yield f"tests/faults.json: {fault}: no test"
        for test in tests:
            if test not in known:
                yield f"tests/faults.json: {fault}: there is no test {test}"
    shown = [tuple(cell.strip() for cell in line.strip("|").split(" | ")[:2])
             for line in split_readme(root)[1].splitlines() if line.startswith("| ")][1:]
    if shown != [row[:2] for row in rows]:
        yield f"{README}: its table of faults has other rows than tests/faults.json; write it with --update"


def main():
    if sys.argv[1:2] == ["--update"]:
        before, _, after = split_readme(ROOT)
        text = before + BEGIN + "\n" + table(read_rows(ROOT), read_results(sys.argv[2:])) + "\n" + END + after
        (ROOT / README).write_text(text, encoding="utf-8")
        return 0
    wrong = list(findings(ROOT))
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
