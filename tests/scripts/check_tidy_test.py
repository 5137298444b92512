"""scripts/lib/check_tidy checks sources in groups and reports the location of each finding."""

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
        source.write_text(f"int {source.stem};\nextern int more;\nextern int last;\n")
    return {source: {"command": f"c++{flag} -o {source.name}.o -c {source}", "directory": str(source.parent)} for source in sources}


def test_sources_with_the_same_compile_command_are_grouped_except_programs(tidy, tmp_path):
    commands = commands_of(tmp_path / "a/one.cpp", tmp_path / "b/two.cpp", tmp_path / "a/main.cpp", tmp_path / "b/main.cpp")
    commands |= commands_of(tmp_path / "a/optimised.cpp", flag=" -O3")
    commands |= commands_of(tmp_path / "a/fast.cpp", flag=" -mavx512f")
    groups = tidy.group(commands, commands)
    assert [[path.name for path in group.sources] for group in groups] == [
        ["one.cpp", "two.cpp", "optimised.cpp"], ["main.cpp"], ["main.cpp"], ["fast.cpp"]]


@pytest.mark.parametrize("conflict", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_findings_are_reported_at_their_original_location(tidy, tmp_path, monkeypatch, conflict):
    commands = commands_of(tmp_path / "a/one.cpp", tmp_path / "a/two.cpp")
    program = tmp_path / "clang-tidy"
    program.write_text(f'#!/bin/sh\nfor path; do :; done\necho "$path:{2 if conflict else 5}:5: error: bad name [check]"\nexit 1\n')
    program.chmod(0o755)
    if conflict:  # the compiler rejects the concatenated sources
        (tmp_path / "a/two.cpp").write_text("float one;\n\n")
    monkeypatch.setattr(tidy, "BUILD_FOLDER", tmp_path / "build")
    monkeypatch.setattr(tidy, "find_clang_tidy", lambda: (str(program), "version 14"))
    (group,) = tidy.group(commands, commands)
    places = [f"{tmp_path}/a/{name}.cpp:2:5: error: bad name [check]\n" for name in ("one", "two")]
    assert tidy.Tidy(commands).check(group) == ("".join(places) if conflict else places[1])
