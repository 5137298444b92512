"""Tests scripts/bench: mnist-train's peers, the machine metadata of results, and the tables in README.md and scripts/bench/README.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "lib" / "bench"), str(ROOT / "scripts" / "bench" / "peers")]
import machine  # noqa: E402
import table  # noqa: E402

RUN = ROOT / "scripts" / "bench" / "run"
RESULTS = {path: json.loads(path.read_text()) for path in sorted(machine.RESULTS.glob("*/*.json"))}
# Parts of a result may be measured at different times.
MEASURED = [(path, part) for path, result in RESULTS.items() for part in result.get("parts", {"": result}).values()]
COMPARED, RECOVERED = ([result for path, result in RESULTS.items() if path.name == name] for name in ("cpu.json", "recovery.json"))
ZEN_4 = """processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9R14 96-Core Processor
flags\t\t: fpu sse2 avx avx2 fma avx512f avx512_bf16 sha_ni

processor\t: 1
cpu family\t: 99
"""
XEON = """cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
flags\t\t: avx2 amx_tile amx_bf16 avx512_bf16
"""
ARM = """processor\t: 0
Features\t: fp asimd sve bf16
CPU architecture: 8
"""


@pytest.mark.parametrize("name", table.TABLES)
def test_the_tables_match_the_committed_results(name):
    text = (ROOT / name).read_text()
    assert table.replaced(text, name, table.TABLES[name](COMPARED, RECOVERED)) == text, "scripts/bench/table was not run"


def test_a_processor_is_identified_by_name_family_model_and_flags():
    assert machine.processor(ZEN_4) == {"name": "AMD EPYC 9R14 96-Core Processor", "family": "25", "model": "17",
                                        "flags": ["avx", "avx2", "fma", "avx512f", "avx512_bf16"]}
    assert machine.processor(XEON)["flags"] == ["avx2", "avx512_bf16", "amx_tile", "amx_bf16"]
    arm = machine.processor(ARM)
    assert arm["name"] and arm["family"] == machine.NOT_MEASURED and arm["flags"] == ["asimd", "sve", "bf16"]


def test_every_result_describes_its_machine_and_is_in_the_folder_of_its_processor():
    assert MEASURED
    assert machine.folder_name(machine.processor(XEON)) == "intel-xeon-platinum-8481c-family-6-model-143"
    for path, result in MEASURED:
        assert path.parent.name == machine.folder_name(result["machine"]["processor"]), path
        seen = result["machine"]
        assert set(seen) == {"processor", "cores", "cores_used", "rates", "load_average"}, path
        assert set(seen["processor"]) == {"name", "family", "model", "flags"}, path
        assert set(machine.RATES) <= set(seen["rates"]), path
        assert set(seen["load_average"]) == {"before", "during", "after"}, path


def test_the_newest_result_is_first_in_the_full_table_and_the_only_one_in_the_small_table():
    newer = COMPARED[0] | {"date": "2999-01-01", "machine": COMPARED[0]["machine"] | {"processor": machine.processor(ZEN_4)}}
    headings = [line for line in table.make_full([*COMPARED, newer]) if line.startswith("### ")]
    assert headings[0] == "### AMD EPYC 9R14 96-Core Processor, family 25, model 17" and len(headings) == len(COMPARED) + 1
    assert table.make_small([*COMPARED, newer]) == table.make_small([newer])


# Multiply-adds of a forward pass; for a convolution, output positions x kernel size x input channels x output channels.
MULTIPLY_ADDS = {
    "net": (24 * 24 * 25 * 1 * 20, 8 * 8 * 25 * 20 * 50, 800 * 500, 500 * 10),
    "lenet": (24 * 24 * 25 * 1 * 6, 10 * 10 * 9 * 6 * 16, 400 * 120, 120 * 84, 84 * 10),
    "mlp": (784 * 1024, 1024 * 1024, 1024 * 10),
}


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_the_floor_is_the_time_for_the_flops_at_the_measured_rates(name):
    pytest.importorskip("torch")
    import compare

    first, *others = MULTIPLY_ADDS[name]
    work = 2 * (2 * first + 3 * sum(others))  # the gradient of the images is not computed
    floors = compare.floor(name, 60000, {"bf16_flops": 4e11, "fp32_flops": 1e11, "memory_bytes_per_s": 1e10})
    assert floors == {"bf16": pytest.approx(60000 * work / 4e11), "fp32": pytest.approx(60000 * work / 1e11)}


@pytest.mark.skipif("MNIST_TRAIN_BINARY" not in os.environ, reason="needs the built program")
@pytest.mark.parametrize("name", ["own_network", "vgg", "resnet18", "torchvision-resnet18"])
def test_the_networks_of_the_peers_have_the_same_number_of_parameters(name, tmp_path):
    pytest.importorskip("torchvision")
    from cases import CASES
    from torch_models import MODELS

    case = CASES[name]
    settings = [part for setting in case.settings for part in ("--set", setting)]
    done = subprocess.run([os.environ["MNIST_TRAIN_BINARY"], "describe", "--json", "--config", ROOT / case.config, *settings],
                          capture_output=True, text=True, check=True)
    parameters = sum(parameter.numel() for parameter in MODELS[case.model]().parameters())
    assert json.loads(done.stdout)["parameters"] == parameters


def test_a_side_with_different_losses_is_not_timed(monkeypatch):
    pytest.importorskip("torch")
    import types

    import compare
    import sides

    def run_of(losses):
        epochs = [{"train_seconds": 2.0, "train_loss": loss, "test_accuracy": 0.5, "time": 1.0} for loss in losses]
        return lambda *case: sides.Run(5.0, epochs, 1.0, 10**6)

    monkeypatch.setattr(sides, "PEERS_BY_NAME", {
        "ours": ("mnist-train", run_of([2.3, 2.2])), "best": ("same", run_of([2.30001, 2.2])), "ddp": ("other", run_of([2.3, 2.21]))})
    options = types.SimpleNamespace(sides=["ddp_fp32", "best_fp32", "ours_fp32"], check_steps=2, runs=1, limit=0, device="cpu")
    case = compare.measure_case("net", options, {"bf16_flops": 4e11, "fp32_flops": 1e11}, None)
    assert list(case["sides"]) == ["best_fp32", "ours_fp32"]
    assert "differ too much from ours" in case["failures"]["ddp_fp32"]
    assert case["sides"]["best_fp32"]["times_as_much"]["epoch_seconds"] == 1
    assert case["sides"]["ours_fp32"]["floor_reached"] == case["floor_epoch_seconds"]["fp32"] / 2


@pytest.mark.parametrize("arguments, message", [
    (["--peers", "ours,keras"], "unknown peer: keras; choose from ours, ddp, best"),
    (["--precisions", "fp16"], "unknown precision: fp16"),
    (["--device", "cuda", "--output"], "give a file for the GPU result"),
    (["resnet18", "--peers", "ours,jax"], "the peer jax supports only net, lenet and mlp on CPUs"),
])
def test_invalid_comparisons_are_refused(arguments, message):
    done = subprocess.run([sys.executable, RUN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.sweep
@pytest.mark.skipif("MNIST_TRAIN_BINARY" not in os.environ, reason="needs the built program")
def test_losses_in_jax_match_ours(tmp_path):
    import sides

    if not sides.jax_python().exists():
        pytest.skip("JAX is not installed; scripts/bench/run --peers jax installs it")
    output = tmp_path / "result.json"
    done = subprocess.run([sys.executable, RUN, "lenet", "--runs", "1", "--epochs", "1", "--peers", "ours,jax", "--limit", "640",
                           "--binary", os.environ["MNIST_TRAIN_BINARY"], "--output", output],
                          check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    case = json.loads(output.read_text())["cases"]["lenet"]
    assert set(case["sides"]) == {"ours_bf16", "ours_fp32", "jax_bf16", "jax_fp32"}
    assert case["sides"]["jax_fp32"]["compile_seconds"]["median"] > 0


@pytest.mark.sweep
@pytest.mark.skipif("MNIST_TRAIN_BINARY" not in os.environ, reason="needs the built program")
def test_both_sides_reach_the_same_accuracy_in_a_short_benchmark(tmp_path):
    pytest.importorskip("torch")
    output = tmp_path / "result.json"
    command = [sys.executable, RUN, "net", "--runs", "1", "--epochs", "1", "--peers", "ours,best", "--precisions", "fp32",
               "--limit", "6400", "--binary", os.environ["MNIST_TRAIN_BINARY"], "--output", output]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    case = result["cases"]["net"]
    accuracy = {side: side_result["test_accuracy"]["median"] for side, side_result in case["sides"].items()}
    assert all(0.6 < value < 0.95 for value in accuracy.values()), accuracy
    assert abs(accuracy["ours_fp32"] - accuracy["best_fp32"]) < 0.1
    assert case["loss_check"]["best_fp32"]["distance"] < 1e-4
    # Other load may slow the measurement of the rates more than the epoch.
    assert 0.1 < case["floor_epoch_seconds"]["fp32"] / case["sides"]["ours_fp32"]["epoch_seconds"]["median"] < 2
    assert all(rate > 1e9 for rate in result["machine"]["rates"].values())
    assert result["machine"]["load_average"]["during"]["count"] > 0
