"""`cmake --install` creates a relocatable installation."""

import json
import re

from installation import BUILD, needs_build_folder, prefix  # noqa: F401, F811  (a fixture)
from support import environment, rank_variables, run_program

pytestmark = needs_build_folder
TRAINING = {"max_steps": 3, "device": "cpu", "data.limit_train": 300, "data.limit_test": 100}


def train_installed(prefix, output, *arguments, **variables):
    # With MNIST_TRAIN_DATA set, the program would use the repository's data.
    variables = {**environment(**variables), "MNIST_TRAIN_DATA": ""}
    command = [prefix / "bin" / "mnist-train", "--config", prefix / "share/mnist-train/configs/mnist.json", "--output", output,
               *(f"--set={key}={json.dumps(value)}" for key, value in TRAINING.items()), *arguments]
    run_program(*command, cwd=prefix, env=variables)


def test_files_are_in_the_standard_locations(prefix):
    for path in ("bin/mnist-train", "libexec/mnist-train/mnist-train-worker",
                 "share/mnist-train/configs/mnist.json", "share/mnist-train/config.schema.json",
                 "share/mnist-train/mnist/train-images-idx3-ubyte.gz", "share/doc/mnist-train/LICENSE",
                 "include/mnist_train/model.h"):
        assert (prefix / path).stat().st_size > 0, path
    module = (BUILD / "bin" / "libmnist-train-cuda.so").exists()
    assert (prefix / "libexec/mnist-train/libmnist-train-cuda.so").exists() == module


def test_installed_pages_have_no_broken_links(prefix):
    pages = sorted(prefix.rglob("*.md"))
    assert {str(page.relative_to(prefix / "share/doc/mnist-train")) for page in pages} >= {
        "README.md", "CHANGELOG.md", "configs/README.md", "src/cli/README.md", "src/report/README.md"}
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()) if "://" not in link]
    assert len(links) > 30
    assert [(page, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_installed_program_trains_on_the_installed_mnist(prefix):
    train_installed(prefix, "run", "--nproc-per-node=2")
    assert json.loads((prefix / "run/summary.json").read_text())["world_size"] == 2


def test_the_installed_program_finds_the_installed_mnist_under_torchrun(prefix):
    train_installed(prefix, "worker", **rank_variables())
