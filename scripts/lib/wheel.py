"""Writes a wheel from a folder with the files to install. The same folder always yields a byte-identical wheel.

See packaging.python.org/specifications, "Binary distribution format".
"""

import argparse
import base64
import hashlib
import os
import re
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the earliest time that the zip format can represent

METADATA = """\
Metadata-Version: 2.1
Name: mnist-train
Version: {version}
Summary: Trains image classifiers in multiple processes and on multiple GPUs, with LibTorch
License: MIT
Requires-Python: >=3.10
Requires-Dist: torch=={torch}.*
{dali}Description-Content-Type: text/markdown

{readme}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: mnist-train
Root-Is-Purelib: false
Tag: {tag}
"""

DALI = """\
Provides-Extra: dali
Requires-Dist: {}; extra == "dali"
"""

ENTRY_POINTS = """\
[console_scripts]
mnist-train = mnist_train:main
"""


def without_links(page, is_there=lambda target: False):
    """Replaces links to files that are not there with plain text."""
    def text_unless_there(link):
        return link[0] if is_there(link[2].partition("#")[0]) else link[1]

    without_images = re.sub(r'<img()\s+src="(?!\w+://)([^"]*)"[^>]*>\n?', text_unless_there, page)
    return re.sub(r"!?\[([^\]]*)\]\((?!\w+:)([^)\s]*)\)", text_unless_there, without_images)


def files_of(folder, arguments, tag):
    """Returns (name, bytes, is executable) of each file except RECORD, sorted by name."""
    files = [(path.relative_to(folder).as_posix(), path.read_bytes(), os.access(path, os.X_OK))
             for path in folder.rglob("*") if path.is_file()]
    torch = ".".join(arguments.torch.split(".")[:2])
    start = (ROOT / "scripts" / "lib" / "wheel_start.py").read_text().replace("@TORCH@", torch)
    metadata = METADATA.format(version=arguments.version, torch=torch,
                               dali=DALI.format(arguments.dali) if arguments.dali else "",
                               readme=without_links((ROOT / "README.md").read_text()))
    texts = {
        "mnist_train/__init__.py": start,
        f"{arguments.info}/METADATA": metadata,
        f"{arguments.info}/WHEEL": WHEEL.format(tag=tag),
        f"{arguments.info}/entry_points.txt": ENTRY_POINTS,
        f"{arguments.info}/LICENSE": (ROOT / "LICENSE").read_text(),
    }
    return sorted(files + [(name, text.encode(), False) for name, text in texts.items()])


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def add_file(wheel, name, content, is_executable):
    entry = zipfile.ZipInfo(name, TIMESTAMP)
    entry.create_system = 3  # Unix, on every system
    entry.external_attr = (0o100755 if is_executable else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    for name in ("version", "torch", "system"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--dali", help="requirement for the extra `dali` (default: no such extra)")
    arguments = parser.parse_args()
    arguments.info = f"mnist_train-{arguments.version}.dist-info"
    tag = f"py3-none-{arguments.system}"
    files = files_of(arguments.folder, arguments, tag)
    record = "".join(record_line(name, content) for name, content, _ in files) + f"{arguments.info}/RECORD,,\n"
    path = arguments.output / f"mnist_train-{arguments.version}-{tag}.whl"
    part = path.with_suffix(".part")
    arguments.output.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(part, "w") as wheel:
        for file in [*files, (f"{arguments.info}/RECORD", record.encode(), False)]:
            add_file(wheel, *file)
    part.rename(path)
    print(path)


if __name__ == "__main__":
    main()
