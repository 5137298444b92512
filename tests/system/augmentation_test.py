"""data.augment in whole runs."""

import pytest
from support import merged, relative_difference, train

TOLERANCE = 1e-4
STEPS = 20
LIST = [
    {"name": "random_crop", "padding": 2},
    "horizontal_flip",
    {"name": "rotate", "degrees": 10},
    {"name": "cutout", "size": 8},
    {"name": "mixup", "alpha": 0.4},
]
CONFIG = {"batch_size": 31, "max_steps": STEPS, "data": {"augment": LIST}}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone"), CONFIG)


def test_weights_are_those_of_one_process(tmp_path, alone):
    folder = train(tmp_path, CONFIG, processes=3)
    assert relative_difference(folder.weights(), alone.weights()) < TOLERANCE


def test_the_list_and_its_order_matter(tmp_path, alone):
    for name, augment in [("none", []), ("reversed", LIST[::-1])]:
        other = train(tmp_path, merged(CONFIG, {"data": {"augment": augment}}), output=name)
        assert relative_difference(other.weights(), alone.weights()) > 100 * TOLERANCE, name


def test_global_mixup_needs_a_second_process_and_says_so(tmp_path):
    augment = [{"name": "mixup", "weight": 0.5, "scope": "global"}]
    config = {"max_steps": 10, "data": {"augment": augment}}
    plain = train(tmp_path, merged(config, {"data": {"augment": []}}), output="plain")
    alone = train(tmp_path, config, output="alone")
    assert "mixup with scope global" in alone.stderr
    assert relative_difference(alone.weights(), plain.weights()) < TOLERANCE
    pair = train(tmp_path, config, processes=2, output="pair").weights()
    assert relative_difference(pair, plain.weights()) > 100 * TOLERANCE
