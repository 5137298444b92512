"""A Flyte workflow around mnist-train: the tutorial's hyperparameters in, epoch accuracies and the model out.

    pyflyte run scripts/integrations/flyte_workflow.py mnist_workflow
    pyflyte run scripts/integrations/flyte_workflow.py mnist_workflow --hp '{"epochs": 2, "backend": "gloo"}'
    MNIST_TRAIN_GPUS=2 MNIST_TRAIN_IMAGE=registry/mnist-train:1 pyflyte run --remote …

Environment, when the workflow is registered:
  MNIST_TRAIN_GPUS    GPUs of the task's machine (0); the task asks for them, and for processors and memory to match
  MNIST_TRAIN_IMAGE   the container image, such as one built from scripts/cluster/Dockerfile with flytekit added
and when the task runs:
  MNIST_TRAIN_BINARY  the program (mnist-train of PATH, else the repository's build)
  MNIST_TRAIN_RUNS    a folder that all attempts see; a retry then resumes from the last attempt's newest checkpoint

Flyte retries a task that failed by FlyteRecoverableException: here lost or hung processes (exit code 4) and signals.
A wrong config (2) or missing data (3) would fail again and is not retried. Needs `pip install flytekit`.
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
    """Those of the tutorial, whose batch size is per process."""

    epochs: int = 10
    batch_size: int = 128
    test_batch_size: int = 1000
    learning_rate: float = 0.01
    sgd_momentum: float = 0.5
    seed: int = 1
    backend: str = "nccl" if GPUS else "gloo"
    log_interval: int = 10
    settings: Dict[str, str] = field(default_factory=dict)  # further keys of the config, as --set takes them


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
        raise RuntimeError(f"{found} is not there: set MNIST_TRAIN_BINARY")
    return found


def run_folder(hp: Hyperparameters) -> Path:
    """The same for all attempts of a task where they share a folder, and for no other hyperparameters."""
    context = flytekit.current_context()
    shared = os.environ.get("MNIST_TRAIN_RUNS")
    if not shared:
        return Path(context.working_directory) / "run"
    text = json.dumps([config_of(hp), hp.settings], sort_keys=True)
    return Path(shared) / f"{context.execution_id.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def mark_recoverable():
    """Where the task runs under torch's elastic agent, Flyte looks for this file beside the agent's error file."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file:
        (Path(error_file).parent / "recoverable_error").touch()


def raise_for(code: int):
    """A signal shows as a negative code here, and as 128 + its number from the program."""
    if code == 0:
        return
    if code == DISTRIBUTED or code < 0 or code > 128:
        mark_recoverable()
        raise FlyteRecoverableException(f"mnist-train ended with {code}: a process was lost; a retry can help")
    raise RuntimeError(f"mnist-train ended with {code}; a retry would end the same way, see what it printed")


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
