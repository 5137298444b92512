"""Compiles the kernels with the real NVRTC, which needs no GPU. tests/kernels tests their arithmetic on CPUs."""

import ctypes
import re
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "src" / "kernels"
NVRTC = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"


@pytest.mark.skipif(not NVRTC.exists(), reason="NVIDIA's wheels are not installed")
@pytest.mark.parametrize("architecture", ["sm_90", *(pytest.param(other, marks=pytest.mark.sweep) for other in ("sm_75", "sm_120"))])
def test_nvrtc_compiles_the_kernels(architecture):
    parts = re.search(r"foreach\(part ([\w\s]+)\)", (FOLDER / "CMakeLists.txt").read_text())[1].split()
    assert {f"{part}.cu" for part in parts} == {path.name for path in (FOLDER / "gpu").iterdir()}
    source = "".join((FOLDER / "gpu" / f"{part}.cu").read_text() for part in parts)
    library = ctypes.CDLL(str(NVRTC))
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    # As in the program: without a CUDA toolkit, the loader does not find this library.
    ctypes.CDLL(str(NVRTC.with_name(f"libnvrtc-builtins.so.{major.value}.{minor.value}")))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(f"-arch={architecture}".encode(), b"-std=c++17")
    result = library.nvrtcCompileProgram(program, 2, options)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert result == 0, log.value.decode()
