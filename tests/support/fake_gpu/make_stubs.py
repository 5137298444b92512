#!/usr/bin/env python3
"""Writes a C++ source with a stub for each function that a library of NVIDIA's exports.

usage: make_stubs.py --nm NM --library FILE --prefix PREFIX --error CODE --output FILE [--launch REGEX]

Only functions whose names begin with PREFIX get a stub. A stub says that its function is not implemented, and returns CODE. One
whose name matches REGEX computes something: it launches a kernel that does nothing. All stubs are weak, so that functions that
are written by hand replace theirs when the library is linked.
"""

import argparse
import re
import subprocess

HEADER = """// Written by make_stubs.py from the functions of {library}.
#include "support/fake_gpu/message.h"

using mnist_train::fake_gpu::launch_with_handle;
using mnist_train::fake_gpu::not_implemented;

#define STUB(name) \\
  extern "C" __attribute__((weak)) int name() {{ return not_implemented(#name, {error}); }}
#define LAUNCH(name) \\
  extern "C" __attribute__((weak)) int name(void* handle) {{ return launch_with_handle(handle, #name); }}

"""


def exported_functions(nm, library, prefix):
    """Their names, without symbol versions, in order."""
    result = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    names = set()
    for line in result.stdout.splitlines():
        kind, symbol = line.split()[-2:]
        name = symbol.split("@")[0]
        if kind in "TWi" and name.startswith(prefix):
            names.add(name)
    return sorted(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for option in ("nm", "library", "prefix", "error", "output"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--launch", metavar="REGEX")
    arguments = parser.parse_args()
    functions = exported_functions(arguments.nm, arguments.library, tuple(arguments.prefix.split(",")))
    if not functions:
        parser.error(f"{arguments.library} exports no {arguments.prefix}*")
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write(HEADER.format(library=arguments.library, error=arguments.error))
        for name in functions:
            launches = arguments.launch and re.search(arguments.launch, name, re.IGNORECASE)
            file.write(f"{'LAUNCH' if launches else 'STUB'}({name})\n")


if __name__ == "__main__":
    main()
