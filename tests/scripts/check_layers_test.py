"""scripts/lib/check_layers.py finds what goes against the table of layers, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "check_layers.py"

TABLE = """
| layer | owns | may include | torch |
|---|---|---|---|
| `base/` | errors | – | no |
| `data/` | samples | base | no |
| `comm/` | groups | base | yes |
| `app/` | commands | base, data, comm | yes |
"""


def run(repository):
    result = subprocess.run(
        [sys.executable, str(CHECK), str(repository)], capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    return result.returncode, result.stdout.splitlines()


@pytest.fixture
def repository(tmp_path):
    """A tree that keeps to its table."""
    files = {
        "README.md": TABLE,
        "base/error.h": "#include <string>\n",
        "base/error.cpp": '#include "base/error.h"\n',
        "data/set.cpp": '#include "base/error.h"\n// as c10d does\n',
        "comm/group.cpp": '#include <torch/types.h>\n#include "base/error.h"\nc10d::Store* store;\n',
        "app/main.cpp": '#include "comm/group.h"\n#include "data/set.h"\n',
    }
    for name, text in files.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_a_tree_that_keeps_to_the_table_passes(repository):
    assert run(repository) == (0, [])


@pytest.mark.parametrize(
    "name, text, finding",
    [
        ("base/error.h", '#include "data/set.h"\n', 'src/base/error.h:1: "data/set.h": base/ may include nothing'),
        ("data/set.cpp", '\n#include "comm/group.h"\n', 'src/data/set.cpp:2: "comm/group.h": data/ may include base'),
        ("data/set.cpp", '#include "set.h"\n', "is not relative to src/"),
        ("data/set.cpp", "#include <torch/types.h>\n", "free of torch"),
        ("app/main.cpp", "using Store = c10d::Store;\n", "src/app/main.cpp:1: names c10d"),
        ("data/set.cpp", "\n" * 601, "601 lines, at most 600"),
        ("data/set.cpp", "int f() {\n" + "  g();\n" * 59 + "}\n", "61 lines in one function"),
        ("data/set.h", "class A {\n  int f() {\n" + "    g();\n" * 59 + "  }\n};\n", "src/data/set.h:2: 61 lines"),
        ("new/thing.h", "int a;\n", "src/new:1: is not in the table of layers"),
        ("README.md", TABLE.replace("| – |", "| data |"), "base/ may include data, which the table has further down"),
        ("README.md", TABLE.replace("| base | no |", "| bas | no |"), "data/ may include unknown layers: bas"),
        ("README.md", "no table\n", "has no table of layers"),
    ],
)
def test_what_goes_against_it_is_named(repository, name, text, finding):
    path = repository / "src" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    code, lines = run(repository)
    assert code == 1
    assert any(finding in line for line in lines), lines


def test_a_function_of_60_lines_passes(repository):
    (repository / "src/data/set.cpp").write_text("int f() {\n" + "  g();\n" * 58 + "}\n")
    assert run(repository) == (0, [])
