"""scripts/lib/check_names.py finds two types with one name and variables named like a layer."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "check_names.py"

TABLE = """
| layer | owns | may include | torch |
|---|---|---|---|
| `base/` | errors | – | no |
| `data/` | samples | base | no |
"""

SOUND = """#pragma once
class Later;
struct Options;

/// What a reader needs to open a file. The path is relative to the working directory.
///
///     Options{"a.idx"}
struct Options {
  int count = 0;  // data of the file
};
template <>
struct Hash<Options> {};
enum class Color { kRed };
/// Opens the file and returns how many samples it holds; throws Error(kData) where it is damaged
/// (see the note above).
int open_file(const Options& options, int data_count);
"""


@pytest.fixture
def repository(tmp_path):
    for name, text in {"README.md": TABLE, "base/error.h": "struct Hash;\n", "data/file.h": SOUND}.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def run(repository):
    result = subprocess.run([sys.executable, str(CHECK), str(repository)], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    return result.returncode, result.stdout.splitlines()


def test_sound_names_pass(repository):
    assert run(repository) == (0, [])


@pytest.mark.parametrize("text", [
    "namespace mnist_train::data {}\nusing namespace data;\n", "auto n = view.data();\n", "return data;\n", "void f(int data_);\n",
    "data::Options options;\n", 'say("the data, and more");\n', "void data();\n",
])
def test_uses_of_a_layers_name_that_hide_nothing_pass(repository, text):
    (repository / "src/base/use.cpp").write_text(text)
    assert run(repository) == (0, [])


@pytest.mark.parametrize("text, finding", [
    ("struct Options {\n};\n", "src/data/file.h:8: a second type Options; the first is in src/base/new.h:1"),
    ("class Reader::Color {\n};\n", "a second type Color"),
    ("void f(const Bytes& data);\n", "src/base/new.h:1: data is the name of a layer's namespace"),
    ("std::vector<int> data;\n", "data is the name"),
    ("for (const auto& [name, data] : parts) {\n", "data is the name"),
    ("for (int data : numbers) {\n", "data is the name"),
])
def test_what_goes_against_the_rules_is_named(repository, text, finding):
    (repository / "src/base/new.h").write_text(text)
    code, lines = run(repository)
    assert code == 1
    assert any(finding in line for line in lines), lines
