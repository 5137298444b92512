#!/usr/bin/env python3
"""Runs clang-tidy over the layers that are free of torch and over what the last change touches.

usage: check_tidy.py CLANG_TIDY BUILD_FOLDER [FILE...]

BUILD_FOLDER holds compile_commands.json, without precompiled headers. With files, only those are checked. What passed
is remembered in BUILD_FOLDER/passed until the file, a header of ours that it includes, or the checks change.
"""

import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from check_layers import read_table

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_SLOW = 6  # files that include LibTorch, which take half a minute each


def git(*arguments):
    """Output lines of a git command, none if it fails (no repository, no such commit)."""
    command = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return result.stdout.split() if result.returncode == 0 else []


def changed_files():
    """What differs from the commit that this work branched off, or, on the main line itself, from the one before."""
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/HEAD") or git("merge-base", "HEAD", "origin/main")
    if not base or base == head:
        base = git("rev-parse", "--verify", "--quiet", "HEAD~1")
    if not base:
        return None
    names = git("diff", "--name-only", "--diff-filter=d", base[0]) + git(
        "ls-files", "--others", "--exclude-standard"
    )
    return {REPOSITORY / name for name in names}


def files_to_check(commands):
    """All sources of the layers that are free of torch, and the others' that the change touches, MAX_SLOW of them."""
    layers = read_table(REPOSITORY / "src" / "README.md")
    sources = [path for path in sorted(commands) if path.parent.name in layers and path.parent.parent == REPOSITORY / "src"]
    free = [path for path in sources if not layers[path.parent.name].torch]
    changed = changed_files()
    if changed is None:
        print("no earlier commit to compare with: only the layers that are free of torch are checked")
        return free
    touched = [path for path in sources if path in changed and path not in free]
    if len(touched) > MAX_SLOW:
        left_out = " ".join(str(path.relative_to(REPOSITORY)) for path in touched[MAX_SLOW:])
        print(f"left out, for the time it takes (scripts/lib/check_tidy FILE... checks them): {left_out}")
    return free + touched[:MAX_SLOW]


def own_includes(path, seen):
    """The file and every header of ours that it includes, directly or not."""
    if path in seen or not path.exists():
        return seen
    seen.add(path)
    for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
        for folder in (REPOSITORY / "src", REPOSITORY / "tests"):
            own_includes(folder / name, seen)
    return seen


def fingerprint(path, command, version):
    digest = hashlib.sha256((version + command).encode())
    for file in [REPOSITORY / ".clang-tidy", *sorted(own_includes(path, set()))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def check(clang_tidy, build_folder, path, stamp):
    """The findings in one file; an empty text when there are none."""
    result = subprocess.run(
        [clang_tidy, "-quiet", "-p", str(build_folder), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
        return ""
    return result.stdout or result.stderr


def main():
    clang_tidy, build_folder = sys.argv[1], Path(sys.argv[2])
    entries = json.loads((build_folder / "compile_commands.json").read_text())
    commands = {Path(entry["file"]): entry["command"] for entry in entries}
    files = [Path(name).resolve() for name in sys.argv[3:]] or files_to_check(commands)
    version = subprocess.run([clang_tidy, "--version"], capture_output=True, text=True, check=True).stdout
    stamps = {
        path: build_folder / "passed" / fingerprint(path, commands[path], version) for path in files
    }
    todo = [path for path in files if not stamps[path].exists()]
    print(f"{len(files)} files, of which {len(files) - len(todo)} have passed before", flush=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [pool.submit(check, clang_tidy, build_folder, path, stamps[path]) for path in todo]
        for job in concurrent.futures.as_completed(jobs):
            if job.result():
                failed += 1
                print(job.result(), flush=True)
    print(f"{failed} files with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
