"""scripts/lib/check_markdown.py finds links that lead nowhere, and a README of more than a page."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "check_markdown.py"

README = """# A project
[other](docs/other.md), [a part of it](docs/other.md#two-words-1), [here](#a-project), [site](https://example.org/a#b)
![picture](docs/a.png "title") <img src="docs/a.png" alt="x"> `[no link](nowhere.md)`

```
[no link](nowhere.md)
```
"""
OTHER = "# `Two` words!\n\n## Two words\n\n[back](../README.md)\n"


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "docs/other.md").write_text(OTHER)
    (tmp_path / "docs/a.png").write_bytes(b"")
    (tmp_path / "build").mkdir()
    (tmp_path / "build/ours.md").write_text("[not ours](nowhere.md)\n")
    return tmp_path


def run(repository):
    done = subprocess.run([sys.executable, CHECK, repository], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_links_that_lead_somewhere_pass(repository):
    assert run(repository) == (0, [])


@pytest.mark.parametrize("text, finding", [
    ("[a](nowhere.md)", "docs/new.md:1: nowhere.md: there is no such file"),
    ("\n![a](b.png)", "docs/new.md:2: b.png: there is no such file"),
    ('<img src="c.webp">', "c.webp: there is no such file"),
    ("[a](other.md#three-words)", "other.md#three-words: other.md has no such heading"),
    ("[a](#nothing)", "#nothing: new.md has no such heading"),
    ("[a]: nowhere.md", "nowhere.md: there is no such file"),
])
def test_links_that_lead_nowhere_are_named(repository, text, finding):
    (repository / "docs/new.md").write_text(text + "\n")
    assert run(repository) == (1, [finding if finding.startswith("docs") else f"docs/new.md:1: {finding}"])


def test_a_readme_of_more_than_a_page_is_too_long(repository):
    (repository / "README.md").write_text("line\n" * 150)
    assert run(repository) == (0, [])
    (repository / "README.md").write_text("line\n" * 151 + "x" * 121 + "\n")
    code, lines = run(repository)
    assert code == 1 and len(lines) == 2
    assert "152 lines, at most 150" in lines[0] and "README.md:152: 121 columns, at most 120" in lines[1]
