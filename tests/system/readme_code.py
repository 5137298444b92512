"""The blocks of code in documents for users, which tests run as they are written there."""

import re

from support import REPOSITORY


def block_with(word, language="python", document="configs/README.md"):
    """The only block of a language that has this word."""
    parts = re.split(r"^```", (REPOSITORY / document).read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = [part.split("\n", 1) for part in parts[1::2]]
    found = [code for own, code in blocks if own == language and word in code]
    assert len(found) == 1, f"{len(found)} blocks of {language or 'text'} in {document} have {word}"
    return found[0]
