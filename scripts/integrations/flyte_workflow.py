"""Flyte workflow that runs mnist-train with the tutorial's hyperparameters and returns epoch accuracies and the model.

    pyflyte run scripts/integrations/flyte_workflow.py mnist_workflow
    pyflyte run scripts/integrations/flyte_workflow.py mnist_workflow --hp '{"epochs": 2, "backend": "gloo"}'
    MNIST_TRAIN_GPUS=2 MNIST_TRAIN_IMAGE=registry/mnist-train:1 pyflyte run --remote …

Environment variables at registration:
  MNIST_TRAIN_GPUS    number of GPUs that the task requests, with CPUs and memory to match (default: 0)
  MNIST_TRAIN_IMAGE   the container image, such as one built from scripts/cluster/Dockerfile with flytekit added
Environment variables of the task:
  MNIST_TRAIN_BINARY  the program (default: mnist-train in PATH, else the repository's build)
  MNIST_TRAIN_RUNS    a folder shared by all attempts, so that a retry resumes from the newest checkpoint

Flyte retries tasks that raise FlyteRecoverableException: lost or hung processes (exit code 4) and signals.
An invalid config (2) or missing data (3) would fail again and is not retried. Needs `pip install flytekit`.
"""

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, NamedTuple

import flytekit
from flytekit import Resources, task, workflow
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.file import FlyteFile

GPUS = int(os.environ.get("MNIST_TRAIN_GPUS", "0"))
RESOURCES = Resources(cpu=str(max(2, 4 * GPUS)), mem=f"{max(4, 8 * GPUS)}Gi", ephemeral_storage="4Gi",
                      gpu=str(GPUS) if GPUS else None)
DISTRIBUTED = 4  # exit code of a lost or hung process


@dataclass
class Hyperparameters:
    """The tutorial's hyperparameters; batch size is per process."""

    epochs: int = 10
    batch_size: int = 128
    test_batch_size: int = 1000
    learning_rate: float = 0.01
    sgd_momentum: float = 0.5
    seed: int = 1
    backend: str = "nccl" if GPUS else "gloo"
    log_interval: int = 10
    settings: Dict[str, str] = field(default_factory=dict)  # other config keys, as in --set


class TrainingOutputs(NamedTuple):
    epoch_accuracies: List[float]
    model_file: FlyteFile["pt"]


def config_of(hp: Hyperparameters) -> dict:
    return {
        "epochs": hp.epochs,
        "batch_size_per_process": hp.batch_size,
        "test_batch_size": hp.test_batch_size,
        "learning_rate": hp.learning_rate,
        "sgd_momentum": hp.sgd_momentum,
        "seed": hp.seed,
        "backend": hp.backend,
        "log_interval": hp.log_interval,
    }


def binary() -> str:
    built = Path(__file__).resolve().parents[2] / "build" / "bin" / "mnist-train"
    found = os.environ.get("MNIST_TRAIN_BINARY") or shutil.which("mnist-train") or str(built)
    if not os.access(found, os.X_OK):
        raise RuntimeError(f"{found} not found; set MNIST_TRAIN_BINARY")
    return found


def run_folder(hp: Hyperparameters) -> Path:
    """Returns the run folder. In a shared folder, all attempts at an execution have one run folder per set of hyperparameters."""
    context = flytekit.current_context()
    shared = os.environ.get("MNIST_TRAIN_RUNS")
    if not shared:
        return Path(context.working_directory) / "run"
    text = json.dumps([config_of(hp), hp.settings], sort_keys=True)
    return Path(shared) / f"{context.execution_id.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def mark_recoverable():
    """Marks the error as recoverable. Under torch's elastic agent, Flyte looks for a file next to the agent's error file."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file:
        (Path(error_file).parent / "recoverable_error").touch()


def raise_for(code: int):
    """Raises an error for an exit code. Death by signal N is the code -N, or 128 + N if a shell reported it."""
    if code == 0:
        return
    if code == DISTRIBUTED or code < 0 or code > 128:
        mark_recoverable()
        raise FlyteRecoverableException(f"mnist-train exited with {code}: a process was lost; retrying may help")
    raise RuntimeError(f"mnist-train exited with {code}; retrying would fail again, see its output")


@task(retries=2, cache=True, cache_version="1", requests=RESOURCES, limits=RESOURCES,
      container_image=os.environ.get("MNIST_TRAIN_IMAGE"))
def train_mnist(hp: Hyperparameters) -> TrainingOutputs:
    folder = run_folder(hp)
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = Path(flytekit.current_context().working_directory) / "hyperparameters.json"
    config.write_text(json.dumps(config_of(hp)))
    command = [binary(), "--config", str(config), "--output", str(folder), "--resume", "auto"]
    for key, value in hp.settings.items():
        command += ["--set", f"{key}={value}"]
    raise_for(subprocess.run(command, check=False).returncode)
    accuracies = json.loads((folder / "accuracies.json").read_text())
    return TrainingOutputs(accuracies, FlyteFile(str(folder / "model.pt")))


@workflow
def mnist_workflow(hp: Hyperparameters = Hyperparameters()) -> TrainingOutputs:
    return train_mnist(hp=hp)
