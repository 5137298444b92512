"""scripts/lib/check_words.py finds words that were given up."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "check_words.py"


def run(path):
    done = subprocess.run([sys.executable, CHECK, path], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("text", [
    "The run resumes from the newest checkpoint.", "classroom", "A sharing of memory.", "He is a cardinal.", "the business card",
    "it goes only so far", "overlook", "MNIST and CIFAR-10",
])
def test_ordinary_words_pass(tmp_path, text):
    (tmp_path / "a.md").write_text(text + "\n")
    assert run(tmp_path) == (0, "")


@pytest.mark.parametrize("text", [
    "void go_on();", "test_it_goes_on_here", "A run goes on.", "cut_back_results()", "Riders travel.", "class OwnSets {",
    "struct Sharing {", "own_part()", "std::vector<Halves> h;", "rank.speaks()", "Wishes wishes;", '"engines.h"', "the rooms",
    "batch_size stands beside it", "is no checkpoint", "misshapen:", "starting afresh", "would talk by gloo", "no word from rank 3",
    "was passed over", "what is customary", "MNIST and its kind", "in vain",
])
def test_words_that_were_given_up_are_named_with_what_to_say(tmp_path, text):
    path = tmp_path / "folder" / "a.cpp"
    path.parent.mkdir()
    path.write_text(f"// fine\n{text}\n")
    code, output = run(tmp_path)
    assert code == 1 and output.startswith(f"{path}:2: ") and "say " in output


def test_one_file_can_be_named(tmp_path):
    (tmp_path / "a.md").write_text("A run goes on.\n")
    (tmp_path / "b.md").write_text("A run resumes.\n")
    assert run(tmp_path / "b.md") == (0, "")
