"""scripts/lib/check_tidy puts sources together that do not use a name twice, and says where a finding comes from."""

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


def write(folder, name, inside, namespace="project"):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"namespace {namespace} {{\nnamespace {{\n\n{inside}\n\n}}  // namespace\n}}  // namespace {namespace}\n")
    return path


def test_sources_that_use_a_name_twice_are_apart(tidy, tmp_path):
    sources = [write(tmp_path, "a/one.cpp", "int helper(int a) {\n  return a;\n}"), write(tmp_path, "a/two.cpp", "constexpr int kLimit = 3;"),
               write(tmp_path, "a/three.cpp", "int helper() {\n  return 0;\n}"), write(tmp_path, "a/four.cpp", "struct kLimit {\n};"),
               write(tmp_path, "b/five.cpp", "int helper() {\n  return 0;\n}", "other")]
    commands = {path: {"command": f"c++ -I x -o {path.name}.o -c {path}"} for path in sources}
    assert [[path.name for path in group.sources] for group in tidy.group(sources, commands)] == [
        ["one.cpp", "two.cpp", "five.cpp"], ["three.cpp", "four.cpp"]]


def test_programs_are_apart_and_folders_of_one_namespace_are_not_taken_for_two(tidy, tmp_path):
    main = "int main() {\n  return 0;\n}\n"
    sources = [tmp_path / f"{name}.cpp" for name in ("one", "two")]
    for source in sources:
        source.write_text(main)
    commands = {path: {"command": f"c++ -o {path.name}.o -c {path}"} for path in sources}
    assert len(tidy.group(sources, commands)) == 2
    sources = [write(tmp_path, f"{name}/x.cpp", "int helper();") for name in ("a", "b")]
    commands = {path: {"command": f"c++ -o {path.name}.o -c {path}"} for path in sources}
    assert len(tidy.group(sources, commands)) == 2


def test_sources_that_are_compiled_otherwise_are_apart(tidy, tmp_path):
    sources = [write(tmp_path, f"a/{name}.cpp", "") for name in ("one", "two")]
    commands = {path: {"command": f"c++ {flag} -o {path.name}.o -c {path}"} for path, flag in zip(sources, ("-O2", "-mavx512f"))}
    assert len(tidy.group(sources, commands)) == 2


def test_a_finding_is_reported_where_it_comes_from(tidy, tmp_path, monkeypatch):
    sources = [write(tmp_path, f"a/{name}.cpp", f"int {name};") for name in ("one", "two")]
    program = tmp_path / "clang-tidy"
    program.write_text('#!/bin/sh\nfor path; do :; done\necho "$path:11:5: error: bad name [check]"\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(tidy, "BUILD_FOLDER", tmp_path / "build")
    monkeypatch.setattr(tidy, "find_clang_tidy", lambda: (str(program), "version 14"))
    commands = {path: {"command": f"c++ -o {path.name}.o -c {path}"} for path in sources}
    (group,) = tidy.group(sources, commands)
    assert tidy.Tidy(commands).check(group) == f"{sources[1]}:4:5: error: bad name [check]\n"
