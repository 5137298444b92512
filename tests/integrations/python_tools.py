"""The Python with the tools of third_party/python/integrations.txt, separate from the tests' Python."""

import os
import subprocess
from pathlib import Path

import pytest
from support import REPOSITORY, environment, run_program

PYTHON = Path(os.environ.get("MNIST_TRAIN_INTEGRATIONS_PYTHON", REPOSITORY / ".venv/integrations/bin/python3"))
SCRIPTS = REPOSITORY / "scripts" / "integrations"
NEEDED = pytest.mark.skipif(not PYTHON.exists(), reason="scripts/test --integrations installs the Python tools")


def has_module(name):
    """Returns whether the tools' Python has a module that is not available for every Python version."""
    search = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{name}') is None)"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", search], check=False).returncode == 0


def run_python(*arguments, folder=None, variables=None, expect=0):
    return run_program(PYTHON, *arguments, cwd=folder, env=environment(**(variables or {})), timeout=150,
                       stdin=subprocess.DEVNULL, expect=expect)
