"""Starts this package's mnist-train; `main` execs it, so no Python process remains."""

import os
import signal
import sys
from importlib.util import find_spec

TORCH = "@TORCH@"


def torch_version(folder):
    """Returns the version without importing torch, which takes seconds; None if torch is not there."""
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("__version__"):
                    return line.split("=")[1].strip(" '\"\n")
    except OSError:
        pass
    return None


def libraries_of_torch():
    """Returns the folder of LibTorch's libraries; if torch is missing or incompatible, exits with instructions."""
    spec = find_spec("torch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    version = torch_version(folders[0]) if folders else None
    if version and version.startswith(TORCH + "."):
        return os.path.join(folders[0], "lib")
    found = f"{version} in {folders[0]}" if version else "none"
    print(f"mnist-train: needs PyTorch {TORCH}, but {sys.executable} has {found}\n"
          f"  {sys.executable} -m pip install 'torch=={TORCH}.*'", file=sys.stderr)
    sys.exit(2)


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    libraries = libraries_of_torch()
    dali = os.path.join(libraries, "..", "..", "nvidia", "dali")
    folders = [libraries, os.path.normpath(dali), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals, and exec preserves that
        signal.signal(ignored, signal.SIG_DFL)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "mnist-train")
    os.execv(program, sys.argv)
