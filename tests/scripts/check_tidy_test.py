"""scripts/lib/check_tidy checks sources together, and reports the place of a finding."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "check_tidy"


@pytest.fixture(scope="module")
def tidy():
    loader = importlib.machinery.SourceFileLoader("check_tidy", str(PATH))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_tidy", loader))
    loader.exec_module(module)
    return module


def commands_of(*sources, flag=""):
    for source in sources:
        source.parent.mkdir(exist_ok=True)
        source.write_text(f"int {source.stem};\nint more;\nint last;\n")
    return {source: {"command": f"c++ {flag} -o {source.name}.o -c {source}"} for source in sources}


def test_sources_of_one_compile_command_are_together_and_programs_apart(tidy, tmp_path):
    commands = commands_of(tmp_path / "a/one.cpp", tmp_path / "b/two.cpp", tmp_path / "a/main.cpp", tmp_path / "b/main.cpp")
    commands |= commands_of(tmp_path / "a/fast.cpp", flag="-mavx512f")
    groups = tidy.group(commands, commands)
    assert [[path.name for path in group.sources] for group in groups] == [["one.cpp", "two.cpp"], ["main.cpp"], ["main.cpp"], ["fast.cpp"]]


def test_a_finding_is_reported_where_it_comes_from(tidy, tmp_path, monkeypatch):
    commands = commands_of(tmp_path / "a/one.cpp", tmp_path / "a/two.cpp")
    program = tmp_path / "clang-tidy"
    program.write_text('#!/bin/sh\nfor path; do :; done\necho "$path:5:5: error: bad name [check]"\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(tidy, "BUILD_FOLDER", tmp_path / "build")
    monkeypatch.setattr(tidy, "find_clang_tidy", lambda: (str(program), "version 14"))
    (group,) = tidy.group(commands, commands)
    assert tidy.Tidy(commands).check(group) == f"{tmp_path}/a/two.cpp:2:5: error: bad name [check]\n"
