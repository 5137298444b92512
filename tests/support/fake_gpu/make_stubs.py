#!/usr/bin/env python3
"""Writes a C++ source with a stub for each function of an NVIDIA library.

usage: make_stubs.py --error CODE --output FILE [--nm NM --real LIBRARY --prefix PREFIX] [--names NAME...]
                     [--launch REGEX] [--empty REGEX]

Stubs are written for the functions with PREFIX that the real library exports, and for --names. A stub reports that its function
is not implemented and returns CODE. If its name matches --launch, it launches a no-op kernel instead. If its name matches
--empty, it succeeds: it creates, sets or destroys an empty object, or does nothing.
All stubs are weak symbols, so handwritten functions replace them at link time.
"""

import argparse
import re
import subprocess

HEADER = """// Written by make_stubs.py.
#include "support/fake_gpu/message.h"

using mnist_train::fake_gpu::launch_with_handle;
using mnist_train::fake_gpu::not_implemented;

#define WEAK extern "C" __attribute__((weak)) int
#define STUB(name) WEAK name() {{ return not_implemented(#name, {error}); }}
#define LAUNCH(name) WEAK name(void* handle) {{ return launch_with_handle(handle, #name); }}
#define SUCCEED(name) WEAK name() {{ return 0; }}
#define CREATE(name) WEAK name(void** handle) {{ static char object; *handle = &object; return 0; }}

"""


def exported_functions(nm, library, prefix):
    """Returns the functions' names without symbol versions."""
    result = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    for line in result.stdout.splitlines():
        kind, symbol = line.split()[-2:]
        name = symbol.split("@")[0]
        if kind in "TWi" and name.startswith(prefix):
            yield name


def kind_of(name, arguments):
    if arguments.launch and re.search(arguments.launch, name, re.IGNORECASE):
        return "LAUNCH"
    if arguments.empty and re.fullmatch(arguments.empty, name):
        return "CREATE" if "Create" in name else "SUCCEED"
    return "STUB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for option in ("error", "output"):
        parser.add_argument(f"--{option}", required=True)
    for option in ("nm", "real", "prefix", "launch", "empty"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--names", nargs="*", default=[])
    arguments = parser.parse_args()
    functions = set(arguments.names)
    if arguments.real:
        functions.update(exported_functions(arguments.nm, arguments.real, tuple(arguments.prefix.split(","))))
    if not functions:
        parser.error(f"{arguments.real} exports no {arguments.prefix}*")
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write(HEADER.format(error=arguments.error))
        file.writelines(f"{kind_of(name, arguments)}({name})\n" for name in sorted(functions))


if __name__ == "__main__":
    main()
