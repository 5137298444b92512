"""scripts/lib/config_keys.py generates tables from a JSON Schema."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
import config_keys  # noqa: E402


@pytest.mark.parametrize("rule, takes", [
    ({"type": "integer", "minimum": 1, "maximum": 2147483647}, "an integer from 1"),
    ({"type": "integer", "minimum": 0, "maximum": 1000}, "an integer from 0 to 1,000"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e38}, "a number above 0"),
    ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "a number from 0, below 1"),
    ({"type": "boolean"}, "`true`, `false`"),
    ({"enum": ["a", "b"]}, "`a`, `b`"),
    ({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"const": "auto"}, {"type": "null"}]},
     "an integer from 1 to 9 or `auto`"),
    ({"type": "array", "items": {"type": "string"}}, "a list of: text"),
    ({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}, "a list of 2 × (a number)"),
    ({"type": "object", "properties": {"a": {}, "b": {}}}, '`{"a", "b"}`'),
])
def test_accepted_values_are_described_in_words(rule, takes):
    assert config_keys.takes_text(rule) == takes


SCHEMA = {"properties": {
    "$schema": {"type": "string"},
    "epochs": {"type": "integer", "minimum": 1, "maximum": 2147483647, "default": 10, "description": "Passes | runs."},
    "data": {"type": "object", "description": "What it is.", "properties": {
        "mean": {"anyOf": [{"type": "object", "properties": {"value": {"type": "number", "default": 0}}}, {"type": "null"}],
                 "default": None},
        "augment": {"type": "array", "default": [], "description": "Changes.", "items": {"anyOf": [
            {"type": "object", "properties": {"name": {"const": "flip"}, "size": {"type": "number"}, "p": {"type": "number"}}},
            {"type": "object", "properties": {"name": {"const": "crop"}, "p": {"type": "number"}}}, {"enum": ["flip"]}]}},
        "layers": {"anyOf": [{"$ref": "#/$defs/layers"}, {"type": "null"}]},
    }},
}, "$defs": {"layers": {"type": "array", "items": {"anyOf": [
    {"type": "object", "properties": {"name": {"const": "relu"}}},
    {"type": "object", "properties": {"name": {"const": "repeat"}, "layers": {"$ref": "#/$defs/layers"}}}]}}}}


def test_every_key_has_a_row_in_the_table_of_its_group():
    lines = config_keys.make(SCHEMA)
    assert "| `epochs` | an integer from 1 | `10` | Passes \\| runs. |" in lines
    assert lines.index("### `data`") < lines.index("What it is.") < lines.index('| `data.mean` | `{"value"}` | none |  |')
    assert "| `data.mean.value` | a number | `0` |  |" in lines
    assert lines.index("### Entries of `data.augment`") < lines.index("| `flip: size` | a number |  |  |")
    assert {"| `all: p` | a number |  |  |", "| `crop` | | | |", "| `repeat: layers` | a list of layers |  |  |"} <= set(lines)
    assert "| `data.layers` | a list of: names and objects, [see below](#entries-of-datalayers) |  |  |" in lines
    assert not any("$schema" in line for line in lines)


def test_only_text_between_the_marks_is_replaced():
    text = f"before\n{config_keys.BEGIN}\nold\n{config_keys.END}\nafter\n"
    assert config_keys.replaced(text, ["new", ""]) == f"before\n{config_keys.BEGIN}\n\nnew\n{config_keys.END}\nafter\n"
