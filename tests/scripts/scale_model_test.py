"""scripts/bench/scale: the arithmetic of its model of a step, and that its page says what its results say."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "scripts" / "bench" / "results" / "amd-epyc-family-26-model-2"
sys.path.insert(0, str(ROOT / "scripts" / "lib" / "bench"))
import scale_gpus  # noqa: E402
import scale_model  # noqa: E402
import scale_page  # noqa: E402
import scale_runs  # noqa: E402
from scale_model import MIB, Computing, Constants, Hosts, Network  # noqa: E402

CONSTANTS = Constants(latency=1e-4, latency_crowded=5e-4, latency_between=2e-4, ring_byte=1e-9, ring_byte_between=3e-9,
                      compress_byte=2e-9, bucket_byte=5e-10, barrier=1e-5, shared_byte=4e-9)
NETWORK = Network("two layers", ((250_000, 3_000_000), (500_000, 1_000_000)))  # 1 MB and 2 MB of gradients


def test_a_ring_passes_twice_what_the_others_have():
    assert scale_model.ring(1e6, Hosts(ranks=4, cores=4), CONSTANTS) == pytest.approx((1.5e-3, 6e-4, 0))
    assert scale_model.ring(1e6, Hosts(ranks=4, hosts=4, bandwidth=1e8), CONSTANTS) == pytest.approx((4.5e-3, 1.2e-3, 1.5e-2))
    assert scale_model.ring(1e6, Hosts(ranks=4, hosts=4, bandwidth=1e8, burst=5e5), CONSTANTS)[2] == pytest.approx(1e-2)


def test_a_step_of_a_ring_takes_longer_where_ranks_share_cores_but_not_beside_other_programs():
    assert scale_model.ring(1e6, Hosts(ranks=4, cores=2), CONSTANTS) == pytest.approx((1.5e-3, 3e-3, 0))
    assert scale_model.ring(1e6, Hosts(ranks=2, cores=2, others=1), CONSTANTS) == pytest.approx((1e-3, 2e-4, 0))
    assert Hosts(ranks=2, cores=2, others=1).ranks_per_core == 1.5


def test_buckets_close_as_those_of_the_reducer_do():
    assert scale_model.buckets(NETWORK) == [(2_000_000, 0.25), (1_000_000, 1.0)]
    many = Network("ten layers", ((MIB // 8, 1),) * 10)  # of half a MiB
    assert [size / MIB for size, _ in scale_model.buckets(many, 2 * MIB)] == [1, 2, 2]
    assert [done for _, done in scale_model.buckets(many, 2 * MIB)] == pytest.approx([0.2, 0.6, 1])


def test_what_is_sent_hides_behind_what_is_still_to_compute():
    hidden = scale_model.overlapped(1, 4, [(0.25, 0, 2)])
    assert hidden == 5
    last_bucket_shows = scale_model.overlapped(1, 4, [(0.25, 0, 2), (1, 0, 0.5)])
    assert last_bucket_shows == 5.5
    slow_wire = scale_model.overlapped(1, 4, [(0.25, 0, 10), (1, 0, 3)])
    assert slow_wire == 1 + 1 + 10 + 3
    own_core_is_busy = scale_model.overlapped(1, 4, [(0.25, 0.5, 2), (1, 0.5, 0)])
    assert own_core_is_busy == 6


def test_over_a_slow_cable_buckets_win_and_half_the_bytes_take_half_the_time():
    cable = Hosts(ranks=2, hosts=2, bandwidth=1e8)
    flat = scale_model.flat(NETWORK, 0.01, cable, CONSTANTS)
    assert flat == pytest.approx(0.01 + 0.03 + 4e-4)
    assert scale_model.flat(NETWORK, 0.01, cable, CONSTANTS, compressed=True) == pytest.approx(0.01 + 3e6 * 2e-9 + 0.015 + 8e-4)
    bucketed = scale_model.bucketed(NETWORK, 0.01, cable, CONSTANTS)
    # The large bucket leaves after a quarter of backward and its copy; the small one waits for it.
    assert bucketed == pytest.approx(0.01 / 3 + 0.02 / 3 / 4 + 2e6 * 5e-10 + 0.02 + 0.01 + 8e-4)
    assert bucketed < flat


def test_a_step_takes_longer_by_the_ranks_that_share_a_core():
    computing = Computing(fixed=0.002, per_sample=0.001)
    alone = scale_model.step_seconds("shared_memory", NETWORK, computing, 8, Hosts(2, cores=2), CONSTANTS)
    assert alone == pytest.approx(0.01 + 3e6 * 4e-9 + 3e-5)
    assert scale_model.step_seconds("shared_memory", NETWORK, computing, 8, Hosts(8, cores=2), CONSTANTS) == pytest.approx(4 * alone)


def test_the_slowest_of_many_is_expected_beyond_the_mean():
    assert scale_model.expected_maximum(1) == 0
    assert scale_model.expected_maximum(10) == pytest.approx(1.5388, rel=0.01)
    assert scale_model.expected_maximum(1000) == pytest.approx(3.2414, rel=0.01)
    assert scale_model.skew(0.01, Hosts(8, cores=2)) == pytest.approx(2 * scale_model.skew(0.01, Hosts(2, cores=2)))


def test_the_constants_are_found_again_in_steps_that_the_model_made():
    """Networks of which a thousandth of a second is computed, on hosts of one core each and a machine of two."""
    def case(seconds):
        return {"step_s": seconds, "step_spread_s": 0.0, "others_cores": 0.0}

    cases = {"1 rank, net, 8 samples": case(0.004), "1 rank, net, 32 samples": case(0.01)}
    for size, width in (("small", 16), ("large", 2048)):
        network = Network(size, ((scale_page.bytes_of_layers(width) // 4, 1),))
        cases[f"1 rank, {size}"] = case(1e-3)
        for where, hosts, strategies in (("2 ranks", Hosts(2, cores=2), ("flat", "shared_memory")),
                                         ("2 hosts", Hosts(2, hosts=2), ("flat", "bf16", "bucketed")),
                                         ("4 ranks", Hosts(4, cores=2), ("flat",))):
            for strategy in strategies:
                seconds = scale_model.STRATEGIES[strategy](network, 1e-3, hosts, CONSTANTS)
                separator = f"{size}, {strategy}"
                cases[f"{where}, {separator}"] = case(seconds)
    constants, computing = scale_page.fit({"cases": cases, "samples": {"net": 32}, "machine": {"cores": 2}})
    assert computing["net"].seconds(16) == pytest.approx(0.006)
    for name, value in vars(constants).items():
        assert value == pytest.approx(getattr(CONSTANTS, name), rel=1e-6), name


def test_steps_beside_other_programs_are_counted_as_if_these_were_not_there():
    assert scale_page.beside_others("1 rank, net, 8 samples", 0.9, 2) == 1
    assert scale_page.beside_others("2 ranks, large, flat", 0.5, 2) == 1.25
    assert scale_page.beside_others("2 hosts, large, flat", 1, 8) == 1.5


def test_containers_are_not_counted_twice():
    modules = [{"name": name, "parameters": parameters, "multiply_adds": 1}
               for name, parameters in (("0", 5), ("block", 7), ("block.conv", 4), ("block.bn", 3), ("block2", 2), ("relu", 0))]
    assert [parameters for parameters, _ in scale_runs.without_containers(modules)] == [5, 4, 3, 2]


def test_nccl_takes_the_shorter_way():
    latency, wire = scale_gpus.all_reduce(1e9, 8)
    assert latency == pytest.approx(25e-6) and wire == pytest.approx(1.75e9 / scale_gpus.NVLS)
    few_bytes = [sum(scale_gpus.all_reduce(1024, gpus)) for gpus in scale_gpus.GPUS]
    assert few_bytes == sorted(few_bytes) and few_bytes[0] < 20e-6 and few_bytes[-1] < 100e-6


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_more_gpus_are_never_more_efficient(kind):
    network = Network("net", NETWORK.layers)
    efficiency = [scale_gpus.scaling(network, gpus)[kind]["efficiency"] for gpus in scale_gpus.GPUS]
    assert all(0 < after < before < 1 for before, after in zip(efficiency, efficiency[1:]))


def test_page_and_plot_say_what_the_committed_results_say():
    result = json.loads((RESULTS / "scale.json").read_text())
    assert (RESULTS / "scale.md").read_text() == scale_page.page(result), "scripts/bench/scale --parts none was not run"
    assert (RESULTS / "scale.svg").read_text() == scale_page.draw(result)


def test_the_committed_steps_of_two_hosts_are_predicted_within_a_fifth():
    rows = [row for row in scale_page.compare(json.loads((RESULTS / "scale.json").read_text())) if row["part"] == "hosts"]
    assert len(rows) == 36
    off = [row for row in rows if abs(row["ratio"] - 1) > scale_page.TOLERANCE]
    assert not off, [(row["where"], row["model"], row["strategy"], row["ratio"]) for row in off]


@pytest.mark.skipif("MNIST_TRAIN_BINARY" not in os.environ, reason="needs the built program")
def test_a_run_of_two_ranks_gives_seconds_and_bytes():
    figures = scale_runs.on_one_machine(os.environ["MNIST_TRAIN_BINARY"], "lenet", "flat", samples=4, ranks=2, steps=8)
    assert figures["steps"] == 8
    assert 0 < figures["step_median_s"] < 1 and 0 < figures["startup_s"] < 30
    assert 1e7 < figures["largest_process_bytes"] < 2e9 and 5e7 < figures["all_processes_bytes"] < 4e9


@pytest.mark.skipif("MNIST_TRAIN_BINARY" not in os.environ or os.geteuid() != 0 or not shutil.which("tc"),
                    reason="needs the built program, root and tc")
def test_a_measurement_that_is_ended_leaves_no_hosts(tmp_path):
    def hosts():
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        return {name for name in listed.split() if name.startswith("mt-scale-")}

    of_others = hosts()

    command = [sys.executable, ROOT / "scripts" / "bench" / "scale", "--parts", "constants", "--output", tmp_path / "scale.json",
               "--binary", os.environ["MNIST_TRAIN_BINARY"]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        first = next((line for line in process.stderr if "1 rank, net" in line), None)
        assert first, "it ended without a figure"
        assert len(hosts() - of_others) == 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 143
    assert not hosts() - of_others
