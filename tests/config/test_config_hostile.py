"""Whatever is loaded as a configuration, nothing but a ConfigError comes of it, and at once."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_config_mistakes import matching, refusal

from compressa.config import ConfigWarning, assign, load_config
from compressa.errors import ConfigError
from compressa.parameters import ParameterInfo

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
SECTIONS = ["compressor", "rules", "match", "feedback", "exchange", "warmup", "none", "topk"]
FIELDS = ["name", "role", "shape", "min_elems", "kind", "credit_bytes", "density", "steps"]
KEYS = st.sampled_from([*SECTIONS, *FIELDS])
NAMES = st.sampled_from(["topk", "randomk", "powersgd", "error", "scatter_reduce", "bias", "4MiB"])
NEARLY = st.recursive(
    JUNK | NAMES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)  # the first example pays for building the validators
@given(raw=st.dictionaries(KEYS, NEARLY, max_size=5))
def test_nothing_but_a_config_error_comes_of_any_input(raw: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        assert load_config(load_config(raw).canonical()) is not None


DEEP = {
    "lists": "a = " + "[" * 5000 + "]" * 5000,
    "inline tables": "a = " + "{ a = " * 5000 + "1" + "}" * 5000,
    "dotted keys": ".".join("a" * 5000) + " = 1",
    "very many dotted keys": ".".join("a" * 1_000_000) + " = 1",
    "quoted keys": ". ".join(["'a'", '"b"'] * 2500) + " = 1",
    "a table's name": "[" + ".".join("a" * 5000) + "]",
    "digits": "a = " + "9" * 10_000,
    "one long key": "a" * 1_000_000 + " = 1",
}


@pytest.mark.parametrize("what", DEEP)
def test_what_is_deep_or_long_is_refused_at_once(what: str, tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(DEEP[what])
    started_s = time.process_time()
    text = refusal(file)
    assert time.process_time() - started_s < 1.0
    assert text.startswith(str(file))
    assert len(text) < 600
    assert ("32 deep" in text) == (what not in ("digits", "one long key"))


def test_mappings_may_not_be_deep_nor_hold_endless_numbers_either() -> None:
    deep: dict[str, Any] = {}
    deep["compressor"] = deep
    assert "32 deep" in refusal(deep)
    endless = {"exchange": {"chunk_bytes": 10**9999}}
    assert "at most 1073741824 bytes, not what is too long" in refusal(endless)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    file.write_bytes(b"#" * (33 << 20))
    assert "cannot be read: it is larger than 32 MiB" in refusal(file)


@pytest.mark.parametrize("rows", ["a = 1", 'match = { nme = "a" }\ncompressor = "topk"'])
def test_of_very_many_mistakes_some_are_told(rows: str, tmp_path: Path) -> None:
    file = tmp_path / "many.toml"
    file.write_text('exchange.kind = "scatter_reduce"\n' + f"[[rules]]\n{rows}\n" * 3000)
    first, *shown, last = refusal(file).splitlines()
    assert len(shown) == 100
    count = int(first.removesuffix(" mistakes").rpartition(" ")[2])
    assert last == f"  and {count - 100} more"


HOSTILE = "\x1b[2J\r\n  rank 9 has\x07\u202e\x85"


@pytest.mark.parametrize(
    "raw",
    [
        {HOSTILE: 1},
        {"engine": {HOSTILE: 1}},
        {"engine": {"device": HOSTILE}},
        {"engine": {"seed": [HOSTILE]}},
        {"compressor": HOSTILE},
        {"compressor": {"name": "topk", HOSTILE: 1}},
        {"exchange": {"chunk_bytes": HOSTILE}},
        {"schedule": {"share": {"name": HOSTILE, "at": "file:///f"}}},
        {"schedule": {"share": {"name": "f", "at": f"file:///{HOSTILE}"}}},
        matching({HOSTILE: 1}),
    ],
)
def test_what_is_not_printable_is_written_out(raw: dict[str, Any], tmp_path: Path) -> None:
    text = refusal(raw)
    assert text.isprintable()
    assert "x1b[2J" in text
    file = tmp_path / HOSTILE.replace("/", "")
    file.write_text("engin = 1")
    assert refusal(file).isprintable()
    assert refusal(tmp_path / f"{HOSTILE}.toml").isprintable()


def test_a_rule_without_effect_names_parameters_that_move_no_cursor() -> None:
    config = load_config(matching({"name": HOSTILE}))
    with pytest.warns(ConfigWarning) as warned:
        assign(config, [ParameterInfo(0, HOSTILE.strip(), (3,))])
    assert str(warned[0].message).isprintable()


@pytest.mark.parametrize("length", [200, 100_000])
def test_what_is_long_is_shortened(length: int) -> None:
    for raw in (
        {"k" * length: 1},
        {"engine": {"device": "v" * length}},
        {"feedback": [1] * length},
    ):
        assert len(refusal(raw)) < 600
