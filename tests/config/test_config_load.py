"""A valid configuration is read as it is written, from any source, and shown again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.compressors import COMPRESSORS
from compressa.config import (
    ABSENT,
    Config,
    config_toml,
    first_difference,
    load_config,
)
from compressa.config.choices import CHOICES, choice
from compressa.config.values import parse_bytes
from compressa.engine.units.units import UnitSizes
from compressa.errors import ConfigError

READY = sorted((Path(__file__).parents[2] / "experiments" / "configs").glob("*.toml"))


def load_text(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


@pytest.mark.parametrize("file", READY, ids=lambda file: file.stem)
def test_ready_file_loads_as_it_is_shown_and_says_when_to_use_it(
    file: Path, tmp_path: Path
) -> None:
    config = load_config(file)
    assert load_text(tmp_path, config_toml(config)) == config
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")


@pytest.mark.parametrize("name", COMPRESSORS)
def test_each_compressor_has_a_ready_file(name: str) -> None:
    assert name in {load_config(file).compressor.name for file in READY}


def test_an_empty_file_is_the_default_configuration(tmp_path: Path) -> None:
    assert load_text(tmp_path, "") == Config() == load_config({})


def test_a_config_is_returned_as_it_is() -> None:
    config = Config()
    assert load_config(config) is config


def test_a_configuration_can_be_hashed_and_not_changed() -> None:
    config = load_config({"rules": [{"match": {"role": ["bias"]}, "compressor": "none"}]})
    assert hash(config) == hash(load_config(config.model_dump(mode="json")))
    with pytest.raises(ValueError, match="frozen"):
        config.compressor = choice("int8")


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_choice_builds_its_compressor_with_the_table_s_defaults(name: str) -> None:
    entry = COMPRESSORS[name]
    assert load_config({"compressor": name}).compressor.build() == entry.compressor()
    fields = [field.name for field in dataclasses.fields(entry.compressor)]
    assert list(CHOICES[name].model_fields) == ["name", *fields]


def test_hyper_parameters_reach_the_compressor() -> None:
    config = load_config({"compressor": {"name": "topk", "density": 0.5, "value_dtype": "float16"}})
    assert (
        repr(config.compressor.build())
        == "TopK(density=0.5, value_dtype='float16', indices='auto')"
    )


@pytest.mark.parametrize("name", ["powersgd", "acpsgd"])
def test_a_low_rank_may_be_called_rank(name: str) -> None:
    config = load_config({"compressor": {"name": name, "rank": 2}})
    assert config == load_config({"compressor": {"name": name, "approx_rank": 2}})
    assert config.canonical()["compressor"]["approx_rank"] == 2
    with pytest.raises(ConfigError, match=r"compressor\.rank: must be at least 1 and at most"):
        load_config({"compressor": {"name": name, "rank": 0}})
    with pytest.raises(ConfigError, match=r"compressor\.rank: is not a setting"):
        load_config({"compressor": {"name": name, "rank": 2, "approx_rank": 2}})
    with pytest.raises(ConfigError, match=r"compressor\.rank"):
        load_config({"compressor": {"name": "topk", "rank": 2}})


def test_a_lone_value_stands_for_a_list_of_one() -> None:
    def of(match: dict[str, Any]) -> Config:
        return load_config({"rules": [{"match": match, "compressor": "none"}]})

    assert of({"name": "a*", "role": "norm"}) == of({"name": ["a*"], "role": ["norm"]})


def test_sizes_are_read_as_people_write_them() -> None:
    sizes = {"0.5KiB": 512, "4MiB": 4 << 20, "1 GiB": 1 << 30, "2kB": 2000, "7": 7, "7B": 7}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    assert load_config({"exchange": {"unit_bytes": "2MB"}}).exchange.unit_bytes == 2_000_000


def test_rates_are_read_as_of_links() -> None:
    for text in ("100mbit", "100 Mbit/s", "0.1gbit"):
        assert load_config({"schedule": {"pace_bits_per_s": text}}).schedule.pace_bits_per_s == 1e8
    schedule = load_config({"schedule": {"server_bits_per_s": 2.5e9}}).schedule
    assert schedule.server_bits_per_s == 2.5e9


def test_a_trace_path_may_be_a_path_object(tmp_path: Path) -> None:
    assert load_config({"trace": {"path": tmp_path}}).trace.path == str(tmp_path)


def names() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@settings(deadline=None)  # the first example pays for building the validators
@given(
    name=names(),
    path=names(),
    shape=st.lists(st.integers(0, 9) | st.just("*"), max_size=3),
    density=st.floats(1e-300, 1),
    elems=st.integers(0, 2**40),
)
def test_any_configuration_survives_being_shown(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    path: str,
    shape: list[int | str],
    density: float,
    elems: int,
) -> None:
    rule = {
        "match": {"name": name, "shape": shape, "max_elems": elems},
        "compressor": {"name": "topk", "density": density},
        "feedback": "none",
    }
    config = load_config({"rules": [rule, rule], "trace": {"path": path}})
    assert load_text(tmp_path_factory.mktemp("shown"), config_toml(config)) == config


def test_canonical_form_is_plain_and_leaves_only_the_trace_out() -> None:
    written = load_config({"exchange": {"unit_payload_bytes": "128KiB"}, "trace": {"path": "x"}})
    canonical = written.canonical()
    assert canonical == Config().canonical() == json.loads(json.dumps(canonical))
    assert set(Config.model_fields) - set(canonical) == {"trace"}


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ("a.b[1]", 2, 3)),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", 2, ABSENT)),
        ({}, {"b": None}, ("b", ABSENT, None)),
        ([1], [1, 2], ("[1]", ABSENT, 2)),
        ({"a": True}, {"a": 1}, ("a", True, 1)),
        ({"a": [1]}, {"a": {"0": 1}}, ("a", [1], {"0": 1})),
        ({"b": 1, "a": 1}, {"a": 2, "b": 2}, ("b", 1, 2)),
    ],
)
def test_the_first_difference_is_found(a: Any, b: Any, found: tuple[str, Any, Any] | None) -> None:
    assert first_difference(a, b) == found


def test_the_first_difference_between_two_configurations_has_its_key_path() -> None:
    a = load_config({"compressor": "topk"}).canonical()
    b = load_config({"compressor": {"name": "topk", "density": 0.02}}).canonical()
    assert first_difference(a, b) == ("compressor.density", 0.01, 0.02)


def test_units_are_as_large_as_buckets_only_where_nothing_overtakes_unless_they_are_given() -> None:
    def units(raw: dict[str, Any]) -> UnitSizes:
        return UnitSizes.of(load_config(raw))

    usual = UnitSizes(4 << 20, 128 << 10, 25 << 20, 1 << 20)
    assert units({}) == units({"schedule": {"policy": "fifo"}}) == usual
    assert units({"schedule": {"policy": "auto"}}) == UnitSizes(None, 128 << 10, None)
    given = {"schedule": {"policy": "priority"}, "exchange": {"unit_bytes": "2MiB"}}
    assert units(given) == UnitSizes(2 << 20, 128 << 10, None)


def test_another_policy_may_be_meant_where_none_is_said(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[schedule]\nreplan_steps = 7\n")
    for source in (path, {"schedule": {"replan_steps": 7}}):
        meant = load_config(source, policy="auto")
        assert (meant.schedule.policy, meant.schedule.replan_steps) == ("auto", 7)
    said = {"schedule": {"policy": "fifo"}}
    assert load_config(said, policy="auto").canonical() == load_config(said).canonical()
    assert load_config(load_config({}), policy="auto") == load_config({})
