"""The checks of sources and Markdown report violations of their rules, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).resolve().parents[2] / "scripts" / "lib"


def findings(check, repository):
    done = subprocess.run([sys.executable, CHECKS / f"{check}.py", repository], capture_output=True, text=True, check=False)
    assert done.stderr == "" and done.returncode == (done.stdout != "")
    return done.stdout.splitlines()


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


# Layers

LAYERS = """
| layer | owns | may include | torch |
|---|---|---|---|
| `base/` | errors | – | no |
| `data/` | samples | base | no |
| `comm/` | groups | base | yes |
| `app/` | commands | base, data, comm | yes |
"""


@pytest.fixture
def layers(tmp_path):
    """Returns a source tree that complies with its table of layers."""
    return write(tmp_path, {
        "src/README.md": LAYERS,
        "src/base/error.h": "#include <string>\n",
        "src/base/error.cpp": '#include "base/error.h"\n',
        "src/data/set.cpp": '#include "base/error.h"\n// as c10d does\n',
        "src/comm/group.cpp": '#include <torch/types.h>\n#include "base/error.h"\nc10d::Store* store;\n',
        "src/app/main.cpp": '#include "comm/group.h"\n#include "data/set.h"\n',
    })


def test_a_tree_that_complies_with_the_table_passes(layers):
    assert findings("check_layers", layers) == []
    write(layers, {"src/data/set.cpp": "int f() {\n" + "  g();\n" * 58 + "}\n"})  # a function of 60 lines
    assert findings("check_layers", layers) == []


@pytest.mark.parametrize("name, text, finding", [
    ("base/error.h", '#include "data/set.h"\n', 'src/base/error.h:1: "data/set.h": base/ may include nothing'),
    ("data/set.cpp", '\n#include "comm/group.h"\n', 'src/data/set.cpp:2: "comm/group.h": data/ may include base'),
    ("data/set.cpp", '#include "set.h"\n', "is not relative to src/"),
    ("data/set.cpp", "#include <torch/types.h>\n", "must not use torch"),
    ("app/main.cpp", "using Store = c10d::Store;\n", "src/app/main.cpp:1: uses c10d"),
    ("data/set.cpp", "\n" * 601, "601 lines exceed the limit of 600"),
    ("data/set.cpp", "int f() {\n" + "  g();\n" * 59 + "}\n", "61 lines in one function"),
    ("data/set.h", "class A {\n  int f() {\n" + "    g();\n" * 59 + "  }\n};\n", "src/data/set.h:2: 61 lines"),
    ("new/thing.h", "int a;\n", "src/new:1: is not in the table of layers"),
    ("README.md", LAYERS.replace("| – |", "| data |"), "base/ may include data, which is further down in the table"),
    ("README.md", LAYERS.replace("| base | no |", "| bas | no |"), "data/ may include unknown layers: bas"),
    ("README.md", "no table\n", "has no table of layers"),
])
def test_violations_of_the_table_are_reported(layers, name, text, finding):
    found = findings("check_layers", write(layers, {f"src/{name}": text}))
    assert any(finding in line for line in found), found


# Markdown

README = """# A project
[other](docs/other.md), [a part of it](docs/other.md#two-words-1), [here](#a-project), [site](https://example.org/a#b)
![picture](docs/a.png "title") <img src="docs/a.png" alt="x"> `[no link](nowhere.md)`

```
[no link](nowhere.md)
```
"""


@pytest.fixture
def pages(tmp_path):
    return write(tmp_path, {"README.md": README, "docs/other.md": "# `Two` words!\n\n## Two words\n\n[back](../README.md)\n",
                            "docs/a.png": "", "build/ours.md": "[not ours](nowhere.md)\n"})


def test_valid_links_pass(pages):
    assert findings("check_markdown", pages) == []


@pytest.mark.parametrize("text, finding", [
    ("[a](nowhere.md)", "docs/new.md:1: nowhere.md: file not found"),
    ("\n![a](b.png)", "docs/new.md:2: b.png: file not found"),
    ('<img src="c.webp">', "c.webp: file not found"),
    ("[a](other.md#three-words)", "other.md#three-words: no such heading in other.md"),
    ("[a](#nothing)", "#nothing: no such heading in new.md"),
    ("[a]: nowhere.md", "nowhere.md: file not found"),
])
def test_broken_links_are_reported(pages, text, finding):
    found = findings("check_markdown", write(pages, {"docs/new.md": text + "\n"}))
    assert found == [finding if finding.startswith("docs") else f"docs/new.md:1: {finding}"]


def test_a_readme_that_is_too_long_is_reported(pages):
    assert findings("check_markdown", write(pages, {"README.md": "line\n" * 150})) == []
    found = findings("check_markdown", write(pages, {"README.md": "line\n" * 151 + "x" * 121 + "\n"}))
    assert len(found) == 2
    assert "152 lines exceed the limit of 150" in found[0] and "README.md:152: 121 columns exceed the limit of 120" in found[1]
