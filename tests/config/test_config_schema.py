"""The JSON Schema accepts what loads, and refuses what an editor should mark."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from compressa.compressors import COMPRESSORS
from compressa.config import Config, config_schema
from compressa.config.choices import field_texts

READY = sorted((Path(__file__).parents[2] / "experiments" / "configs").glob("*.toml"))
SCHEMA = config_schema()
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
# Keywords without a say in what is valid.
SILENT = {"$defs", "$schema", "title", "description", "default", "discriminator", "properties"}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Judge by the part of JSON Schema that is used here; an unknown keyword is an error."""
    checks = {key: wanted for key, wanted in schema.items() if key not in SILENT}
    if isinstance(value, dict):
        known = schema.get("properties", {})
        inner = (accepts(known[key], value[key]) for key in known.keys() & value.keys())
        return all(inner) and all(holds(key, checks[key], value, schema) for key in checks)
    return all(holds(key, wanted, value, schema) for key, wanted in checks.items())


def holds(keyword: str, wanted: Any, value: Any, schema: dict[str, Any]) -> bool:
    match keyword:
        case "$ref":
            return accepts(SCHEMA["$defs"][wanted.rpartition("/")[2]], value)
        case "anyOf":
            return any(accepts(branch, value) for branch in wanted)
        case "oneOf":
            return sum(accepts(branch, value) for branch in wanted) == 1
        case "type":
            exact = wanted == "boolean" or not isinstance(value, bool)
            return exact and isinstance(value, TYPES[wanted])
        case "required":
            return isinstance(value, dict) and set(wanted) <= value.keys()
        case "additionalProperties":
            return isinstance(value, dict) and value.keys() <= schema["properties"].keys()
        case "items":
            return isinstance(value, list) and all(accepts(wanted, v) for v in value)
        case "prefixItems":
            pairs = zip(wanted, value, strict=False) if isinstance(value, list) else ()
            return all(accepts(one, v) for one, v in pairs)
        case _:
            return holds_plain(keyword, wanted, value)


def holds_plain(keyword: str, wanted: Any, value: Any) -> bool:
    match keyword:
        case "const":
            return bool(value == wanted)
        case "enum":
            return value in wanted
        case "pattern":
            return isinstance(value, str) and re.search(wanted, value) is not None
        case "minItems":
            return isinstance(value, list) and len(value) >= wanted
        case "maxItems":
            return isinstance(value, list) and len(value) <= wanted
        case "minimum":
            return isinstance(value, int | float) and value >= wanted
        case "maximum":
            return isinstance(value, int | float) and value <= wanted
        case "exclusiveMinimum":
            return isinstance(value, int | float) and value > wanted
        case "exclusiveMaximum":
            return isinstance(value, int | float) and value < wanted
        case "multipleOf":
            return isinstance(value, int | float) and value % wanted == 0
    raise AssertionError(f"the schema uses {keyword}, which this test does not know")


@pytest.mark.parametrize("file", READY, ids=lambda file: file.stem)
def test_the_schema_accepts_each_ready_file(file: Path) -> None:
    assert accepts(SCHEMA, tomllib.loads(file.read_text(encoding="utf-8")))


def test_the_schema_accepts_what_is_shown_and_every_way_to_write_it() -> None:
    assert accepts(SCHEMA, Config().model_dump(mode="json"))
    assert accepts(SCHEMA, {"compressor": "topk", "exchange": {"unit_bytes": "4 MiB"}})
    assert accepts(SCHEMA, {"schedule": {"pace_bits_per_s": "2.5 Gbit/s"}})
    match = {"name": "*", "role": ["norm", "bias"], "shape": ["*", 3], "ndim": 2}
    assert accepts(
        SCHEMA, {"rules": [{"match": match, "compressor": {"name": "int8", "block": 8}}]}
    )


@pytest.mark.parametrize(
    "raw",
    [
        {"engin": 1},
        {"compressor": "topkk"},
        {"compressor": {"density": 0.1}},
        {"compressor": {"name": "topk", "density": 0}},
        {"compressor": {"name": "topk", "block": 8}},
        {"exchange": {"unit_bytes": "4 apples"}},
        {"schedule": {"pace_bits_per_s": "100 apples"}},
        {"engine": {"threads": "1"}},
        {"rules": [{"compressor": "none"}]},
        {"rules": [{"match": {"role": "nrom"}, "compressor": "none"}]},
        {"rules": [{"match": {"shape": ["x"]}, "compressor": "none"}]},
    ],
)
def test_the_schema_refuses_mistakes(raw: dict[str, Any]) -> None:
    assert not accepts(SCHEMA, raw)


def test_the_schema_has_one_branch_per_compressor() -> None:
    table, name_alone = SCHEMA["properties"]["compressor"]["anyOf"]
    branches = [SCHEMA["$defs"][ref["$ref"].rpartition("/")[2]] for ref in table["oneOf"]]
    assert [branch["properties"]["name"]["const"] for branch in branches] == list(COMPRESSORS)
    assert name_alone["enum"] == list(COMPRESSORS)
    assert SCHEMA["properties"]["compressor"]["default"] == {"name": "none"}
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


def test_the_schema_describes_every_setting() -> None:
    definitions = [SCHEMA, *SCHEMA["$defs"].values()]
    tables = [table for table in definitions if table.get("type") == "object"]
    for table in tables:
        assert table["additionalProperties"] is False
        for name, setting in table["properties"].items():
            assert setting.get("description") or "$ref" in setting, (table["title"], name)


def test_the_schema_has_the_bounds_of_the_table() -> None:
    density = SCHEMA["$defs"]["TopKChoice"]["properties"]["density"]
    expected = {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.01}
    assert expected.items() <= density.items()


@pytest.mark.parametrize("indent", ["", "    "], ids=["by Python 3.13", "as it is written"])
def test_settings_are_read_from_a_docstring_of_any_indentation(indent: str) -> None:
    lines = [
        "",
        "Args:",
        "    density: A share",
        "        of all.",
        "    seed: A number.",
        "",
        "Raises:",
    ]
    doc = "What it is.\n" + "\n".join(indent + line for line in lines)
    assert field_texts(doc) == {"density": "A share of all.", "seed": "A number."}
