"""Tests plug-in networks: built against an installation outside the repository, trained, resumed and refused."""

import os
import re
import shutil

import pytest
from installation import needs_build_folder, prefix  # noqa: F401, F811  (a fixture)
from resume_test import check_that_a_stopped_run_resumes
from support import REPOSITORY, merged, printed_json, run, run_program, train, write_config

COMPILER = os.environ.get("CXX") or shutil.which("c++")
pytestmark = [needs_build_folder, pytest.mark.skipif(COMPILER is None, reason="no compiler found")]
CONFIG = {"epochs": 2, "batch_size": 45, "test_batch_size": 100, "checkpoint": {"every_steps": 5},
          "data": {"limit_train": 350, "limit_test": 200}}
OPTIONS = {"width": 8, "dropout": 0.3, "activation": "gelu", "bias": False}


@pytest.fixture(scope="module")
def example(prefix, tmp_path_factory):
    """Builds tests/plugin_example and returns the library."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(REPOSITORY / "tests" / "plugin_example", folder / "source")
    run_program("cmake", "-G", "Ninja", "-S", source, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}", timeout=600)
    run_program("cmake", "--build", folder / "build", timeout=600)
    return folder / "build" / "libwide_net.so"


def with_plugin(library, options=None, **others):
    return merged(CONFIG, {"model": {"plugin": str(library), "options": OPTIONS if options is None else options}, **others})


def test_a_stopped_run_resumes_bit_identically(tmp_path, example):
    changes = with_plugin(example, epochs=4, precision="bf16")
    assert check_that_a_stopped_run_resumes(tmp_path, changes, 2).summary()["precision"] == "bf16"


def test_a_plug_in_trains_and_its_checkpoints_can_be_evaluated(tmp_path, example):
    changes = with_plugin(example, learning_rate=0.05, sgd_momentum=0.9, epochs=4)
    folder = train(tmp_path, changes, processes=2)
    assert list(folder.weights()) == ["gain", "conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
                                      "norm.num_batches_tracked", "fc.weight", "fc.bias"]
    assert folder.weights()["conv.weight"].shape == (OPTIONS["width"], 1, 5, 5)
    accuracy = folder.read_json("accuracies.json")[-1]
    evaluated = printed_json("evaluate", "--checkpoint", folder.checkpoints()[-1], "--nproc-per-node", 2)
    assert evaluated["test_accuracy"] == pytest.approx(accuracy) and accuracy > 0.4


def test_describe_shows_a_plug_ins_modules(tmp_path, example):
    shown = run("describe", "--config", write_config(tmp_path, with_plugin(example, {"width": 4})), expect=0)
    rows = [line.split() for line in shown.stdout.splitlines()[2:]]
    trained = "rate 0.01, decay 0".split()
    assert rows == [["(outside", "its", "modules)", "1", "gain:", *trained], ["conv", "Conv2d", "104", "weight,", "bias:", *trained],
                    ["norm", "BatchNorm2d", "8", "weight,", "bias:", *trained], ["fc", "Linear", "650", "weight,", "bias:", *trained],
                    ["total", "763", "–"]]


def test_a_plug_ins_frozen_batch_norm_keeps_its_statistics(tmp_path, example):
    initial = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
    for frozen in (True, False):
        changes = with_plugin(example, {}, max_steps=5, parameters=[{"match": "norm.*", "frozen": frozen}])
        weights = train(tmp_path, changes, output=f"run{frozen}").weights()
        assert all((weights[f"norm.{name}"] == value).all() == frozen for name, value in initial.items())


def test_a_plug_ins_initial_weights_depend_on_the_seed(tmp_path, example):
    one, two = (train(tmp_path, with_plugin(example, {}, seed=seed, learning_rate=0, max_steps=1), output=f"run{seed}") for seed in (1, 2))
    assert (one.weights()["fc.weight"] != two.weights()["fc.weight"]).any()


def test_all_invalid_options_are_reported_at_once(tmp_path, example):
    wrong = {"width": 0, "dropout": "much", "activation": "tanh", "bias": 1, "colour": 3}
    refused = train(tmp_path, with_plugin(example, wrong), expect=2)
    for line in ('/model/options/width: expected an integer from 1 to 1024, found 0',
                 '/model/options/dropout: expected a number from 0 to 0.9, found "much"',
                 '/model/options/activation: expected one of "relu", "gelu", found "tanh"',
                 '/model/options/bias: expected true or false, found 1',
                 '/model/options/colour: unknown key; the plug-in reads width, dropout, activation, bias'):
        assert line in refused.stderr


@pytest.fixture(scope="module")
def stub(prefix, tmp_path_factory):
    """Returns a function that compiles a stub plug-in without LibTorch. `make`: the body of its factory function."""
    torch_version = re.search(r"LibTorch ([0-9.]+)", next(prefix.glob("lib*/**/mnist_train-config.cmake")).read_text())[1]

    def compiled(make="", api=1, torch=torch_version, entry="mnist_train_classifier", before=""):
        folder = tmp_path_factory.mktemp("stub")
        (folder / "stub.cpp").write_text(f"""
            #include <cstdlib>
            #include <stdexcept>
            {before}
            void make() {{ {make} }}
            struct Entry {{ int api_version; const char* torch_version; void (*make)(); }};
            extern "C" const Entry* {entry}() {{ static const Entry entry{{ {api}, "{torch}", make }}; return &entry; }}""")
        run_program(COMPILER, "-shared", "-fPIC", "-o", folder / "libstub.so", folder / "stub.cpp")
        return folder / "libstub.so"

    return compiled


# Name: (arguments of `stub`, parts of the message).
REFUSED = {
    "a different interface": ({"api": 2}, ["version 2 of mnist_train/model.h", "this program needs version 1", "rebuild it"]),
    "a different LibTorch": ({"torch": "2.4.1"}, ["LibTorch 2.4.1"]),
    "no entry": ({"entry": "something"}, ["has no function mnist_train_classifier"]),
    "missing symbol": ({"before": "void missing();", "make": "missing();"}, ["cannot be loaded", "undefined symbol", "missing"]),
    "an exception": ({"make": 'throw std::runtime_error("no such kernel");'}, ["cannot create its network: no such kernel"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_incompatible_plug_in_is_refused(tmp_path, stub, case):
    how, parts = REFUSED[case]
    library = stub(**how)
    refused = train(tmp_path, with_plugin(library, {}), processes=2, expect=2)
    for part in [f"/model/plugin: {library}: ", *parts]:
        assert part in refused.stderr


def test_a_file_that_is_not_a_library_is_refused(tmp_path):
    (tmp_path / "text.so").write_text("int main() {}\n" * 99)
    for name, part in (("missing.so", "No such file"), ("text.so", "invalid ELF header")):
        refused = train(tmp_path, with_plugin(tmp_path / name), output=name + ".run", expect=2)
        assert f"/model/plugin: {tmp_path / name}: " in refused.stderr and part in refused.stderr


@pytest.mark.parametrize("make, cause", [
    ("std::exit(0);", "exited with status 0 before the run was over"),
    ("std::abort();", "was killed by signal 6"),
])
def test_a_plug_in_that_ends_its_process_is_reported_as_a_lost_rank(tmp_path, stub, make, cause):
    lost = train(tmp_path, with_plugin(stub(make), {}), processes=2, expect=4)
    assert re.search(rf"rank [01] \(pid \d+\) {cause}", lost.stderr), lost.stderr
