#!/usr/bin/env python3
"""Checks that one thing has one word: words that were given up do not come back.

usage: check_words.py [PATH...]

Looks through src/, tests/, scripts/, configs/ and the Markdown files of the repository, or through the files and folders
that are named, prints FILE:LINE: MESSAGE for each such word, with what to say instead, and exits 1 if there is any.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".cpp", ".cu", ".in", ".py", ".sh", ".md", ".txt", ".cmake", ".json", ".sbatch", ".yaml", ""}
# Where the words stand as data: here, in this check's own test, and in what others published.
EXCEPTIONS = {"scripts/lib/check_words.py", "tests/scripts/check_words_test.py"}
SKIPPED_FOLDERS = {"corpus", "__pycache__", "results", "mnist", "python"}

# (regular expression, what to say instead). Letters are matched in either case, unless a name begins with a capital.
WORDS = [(re.compile(pattern if re.match(r"\\b[A-Z]", pattern) else f"(?i:{pattern})"), instead) for pattern, instead in (
    # Names
    (r"\bgo(es)? on\b|(?<![a-z])go(es)?_on(?![a-z])|\bwent on\b", "resume, continue"),
    (r"\bEarlierRun\b", "ResumedRun"),
    (r"(?<![a-z])cuts?[_ ]back(?![a-z])", "truncate"),
    (r"\bLookPace\b|look_pace|\blooked\(|\ba look\b", "SyncInterval, device synchronisation"),
    (r"\briders?\b", "StepStats, scalars that travel behind the gradients"),
    (r"\bOwnSets\b|\bown_sets\b|\bown sets?\b", "PerRankSampler, a training set for each rank"),
    (r"\bWorkSplit\b|work_split", "BatchPartition"),
    (r"\bSharing\b", "PartitionOptions"),
    (r"\bRecordedStep\b|recorded_step|why_not_recorded|\brecorded (as|in) (one|a) (CUDA )?graph", "GraphedStep, captured"),
    (r"\bown_part\b|\bown share\b|\bown part\b", "owned_shard"),
    (r"\bHalves\b", "Splits, bf16_copy"),
    (r"\bResidentImages\b|resident_images", "ImageBatches, BatchSource"),
    (r"\bspeaks\(", "is_rank0()"),
    (r"\bWishes\b|\bwishes\b|\bwish to stop\b", "EvaluationRequest, stop request"),
    (r"\bCard\b|\bMeeting\b|\bmeetings?\b", "RankInfo, RendezvousResult, rendezvous"),
    (r"\bcomplain(s|ed)?\b", "add_error"),
    (r"\bengines?\.(h|cpp)\b", "worker_identity.h"),
    (r"\brooms?\b", "layer, module, space"),
    # Messages and prose
    (r"\bstands? beside\b", "conflicts with"),
    (r"\bis no checkpoint\b", "is not a checkpoint"),
    (r"\bmisshapen\b", "size mismatch"),
    (r"(?<![a-z])afresh(?![a-z])", "from scratch"),
    (r"\bwould talk\b|\btalks? by\b|\btalk to each other by\b", "uses backend"),
    (r"\bno word from\b", "did not respond"),
    (r"(?<![a-z])passed[_ ]over(?![a-z])|(?<![a-z])passe?s?_over(?![a-z])", "skip"),
    (r"\bGuesses for image files\b", "Classifies image files"),
    (r"\bcustomary\b", "the data set's defaults"),
    (r"\band its kind\b", "MNIST, Fashion-MNIST, your own images"),
    (r"\bin vain\b", "needlessly, without result"),
    (r"\bgo(es)? without\b", "does not use"),
    (r"\bnobody (has )?looked\b|\bnobody looks\b", "is not checked"),
    (r"\bis wanted of\b", "is required of"),
)]


def files_below(path):
    if path.is_file():
        yield path
        return
    for child in sorted(path.iterdir()):
        if child.is_dir() and child.name not in SKIPPED_FOLDERS:
            yield from files_below(child)
        elif child.is_file() and child.suffix in SUFFIXES:
            yield child


def check(path):
    """(line number, message) of every word in the file that was given up."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        for word, instead in WORDS:
            match = word.search(line)
            if match:
                yield number, f'"{match[0]}": say {instead}'


def main():
    paths = [Path(name).resolve() for name in sys.argv[1:]] or [
        *(ROOT / name for name in ("src", "tests", "scripts", "configs", ".ci", "CMakeLists.txt")), *sorted(ROOT.glob("*.md"))]
    findings = 0
    for path in (file for start in paths for file in files_below(start)):
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        if str(name) in EXCEPTIONS:
            continue
        for number, message in check(path):
            findings += 1
            print(f"{name}:{number}: {message}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
