"""Completions in real shells, and the man page in a real formatter."""

import os
import shutil
import subprocess

import pytest
from support import REPOSITORY, run

CONFIGS = list((REPOSITORY / "configs").glob("*.json"))
KEYS = {"epochs=", "data.dataset=", "launch.max_restarts="}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell, name in (("bash", "mnist-train"), ("zsh", "_mnist-train")):
        (folder / name).write_text(run("completion", shell).stdout)
    for name in ("file.json", "picture.png", "run/checkpoints/best.safetensors", "run/model.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


def complete_in_bash(folder, *words):
    """What bash would offer for the last word."""
    script = ('source ./mnist-train; COMP_WORDS=(mnist-train "$@"); COMP_CWORD=$#; _mnist_train; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    result = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, cwd=folder)
    assert not result.stderr, result.stderr
    return set(result.stdout.split())


def test_bash_completes_commands_flags_choices_and_keys(scripts):
    assert {"train", "evaluate", "export"} <= complete_in_bash(scripts, "")
    assert complete_in_bash(scripts, "eval") == {"evaluate"}
    assert {"--config", "--set", "--resume"} <= complete_in_bash(scripts, "--")
    assert "--checkpoint" not in complete_in_bash(scripts, "--")  # without a command it is train
    assert complete_in_bash(scripts, "evaluate", "--che") == {"--checkpoint"}
    assert complete_in_bash(scripts, "export", "--format", "") == {"pt", "safetensors", "onnx", "python"}
    assert complete_in_bash(scripts, "--output", "") == {"run"}
    assert KEYS <= complete_in_bash(scripts, "train", "--set", "")
    assert complete_in_bash(scripts, "completion", "") == {"bash", "zsh"}
    assert complete_in_bash(scripts, "train", "--nproc-per-node", "") == set()
    assert "--set" in complete_in_bash(scripts, "--config", "file.json", "")


# What bash makes words of: "=" is one by itself, unless COMP_WORDBREAKS says otherwise.
@pytest.mark.parametrize("words, offered", [
    (["--set", "device", "="], {"auto", "cpu", "cuda"}),
    (["--set", "device", "=", "c"], {"cpu", "cuda"}),
    (["--set", "device=c"], {"device=cpu", "device=cuda"}),
    (["--set", "epochs=2", "--set", "model.name", "="], {
        "net", "mlp", "lenet", "resnet18", "torchvision-resnet18", "torchvision-resnet34", "torchvision-resnet50",
        "torchvision-mobilenet_v2", "efficientnet-lite0"}),
    (["--set", "epochs", "="], set()),
    (["--set", "model.weights", "=", "run/m"], {"run/model.pt"}),
    (["export", "--format", "=", "s"], {"safetensors"}),
    (["--resume", "=", "a"], {"auto"}),
])
def test_bash_completes_the_values_of_keys(scripts, words, offered):
    assert complete_in_bash(scripts, *words) == offered


def test_bash_offers_the_files_that_a_flag_takes(scripts):
    assert complete_in_bash(scripts, "--config", "") == {"file.json", "run", *(path.stem for path in CONFIGS)}
    assert complete_in_bash(scripts, "--config", "fil") == {"file.json"}
    assert complete_in_bash(scripts, "--resume", "") == {"auto", "run"}
    assert complete_in_bash(scripts, "--resume", "run/") == {"run/checkpoints"}
    assert complete_in_bash(scripts, "--resume", "run/checkpoints/") == {"run/checkpoints/best.safetensors"}
    assert complete_in_bash(scripts, "predict", "--checkpoint", "run/") == {"run/checkpoints", "run/model.pt"}
    assert complete_in_bash(scripts, "predict", "--checkpoint", "x", "pic") == {"picture.png"}
    assert complete_in_bash(scripts, "report", "") == {"run"}


def has_pseudo_terminals():
    try:
        for descriptor in os.openpty():
            os.close(descriptor)
    except OSError:  # a chroot without /dev/pts
        return False
    return True


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
@pytest.mark.skipif(not has_pseudo_terminals(), reason="no pseudo-terminals here")
def test_zsh_completes_on_a_terminal(scripts):
    """By zpty, as completion in zsh needs a line editor; it offers one candidate after the other."""
    script = r"""
zmodload zsh/zpty
zpty terminal zsh -f -i
wait_for() {
  local text all
  for i in {1..1000}; do zpty -r -t terminal text && all+=$text; [[ $all == *$1* ]] && break; sleep 0.01; done
  print -r -- $all
}
zpty -w terminal "fpath=($PWD \$fpath); autoload -Uz compinit; compinit -u -D; PS1=; cd $PWD; LISTMAX=0"
zpty -w terminal "zstyle ':completion:*' list-prompt ''; bindkey '^I' list-choices"
for line candidate in "mnist-train " preview "mnist-train evaluate --che" --checkpoint \
    "mnist-train export --format " safetensors "mnist-train --set launch." launch.max_restarts \
    "mnist-train --set device=" cuda "mnist-train --config " run "mnist-train --resume " run \
    "mnist-train --set=model.name=" torchvision-resnet50; do
  print -r -- "=== $line"
  zpty -w -n terminal "$line"$'\t'
  wait_for $candidate
  zpty -w -n terminal $'\025'
done
"""
    result = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, cwd=scripts, timeout=60,
                            env={"PATH": "/usr/bin:/bin", "TERM": "dumb", "HOME": str(scripts)})
    parts = result.stdout.split("=== ")
    assert "evaluate" in parts[1] and "config-schema" in parts[1], result.stdout
    assert "--checkpoint" in parts[2], result.stdout
    assert "safetensors" in parts[3], result.stdout
    assert "launch.max_restarts" in parts[4], result.stdout
    assert {"auto", "cpu", "cuda"} <= set(parts[5].split()), result.stdout
    assert {"mnist", "file.json", "run/"} <= set(parts[6].split()) and "picture.png" not in parts[6], result.stdout
    assert {"auto", "run/"} <= set(parts[7].split()) and "file.json" not in parts[7], result.stdout
    assert {"net", "resnet18"} <= set(parts[8].split()), result.stdout


def test_the_man_page_is_formatted_without_a_warning():
    page = run("man-page").stdout
    for part in ("EXIT STATUS", "ENVIRONMENT", "MNIST_TRAIN_DATA", r"\-\-checkpoint"):
        assert part in page
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    result = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8"], input=page, capture_output=True, text=True)
    assert result.returncode == 0 and not result.stderr, result.stderr


def test_the_version_names_what_it_was_built_with():
    words = run("--version").stdout.strip().split(", ")
    assert words[0].startswith("mnist-train ")
    names = [word.split(" ")[0] for word in words[1:]]
    assert names == ["commit", "LibTorch", "CUDA", "NCCL", "DALI", "compiler"]
