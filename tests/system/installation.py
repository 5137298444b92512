"""Creates an installation with `cmake --install` and moves it to another folder."""

import shutil
from pathlib import Path

import pytest
from support import BINARY, run_program

BUILD = Path(BINARY).resolve().parents[1]
needs_build_folder = pytest.mark.skipif(not (BUILD / "CMakeCache.txt").exists() or shutil.which("cmake") is None,
                                        reason="the binary is not in a build folder, or cmake is missing")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("install")
    run_program("cmake", "--install", BUILD, "--prefix", folder / "first")
    return (folder / "first").rename(folder / "moved")
