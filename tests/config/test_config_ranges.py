"""Every number has a least and a most, and with either a model is registered."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from _ranks import Pools, settings
from _training import registered

from compressa.compressors import COMPRESSORS
from compressa.config import config_schema, load_config
from compressa.errors import ConfigError

Keys = tuple[str, ...]
Number = int | float
SCHEMA = config_schema()
_LEAST, _MOST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_TOGETHER: dict[str, dict[str, Any]] = {
    "demo.chunk": {"compressor": {"kept": 16}},
    "demo.kept": {"compressor": {"chunk": 64}},
    "exchange.credit_bytes": {"exchange": {"chunk_bytes": 1}},
    "exchange.chunk_bytes": {"exchange": {"credit_bytes": 1 << 30}},
    "exchange.heartbeat_s": {"exchange": {"silence_s": 604800}},
    "exchange.silence_s": {"exchange": {"heartbeat_s": 0.001}},
    "schedule.burst_bytes": {"schedule": {"pace_bits_per_s": 1e8}},
    "schedule.share.longest_wait_s": {"schedule": {"share": {"name": "a", "at": "file:///tmp"}}},
    "warmup.densities": {"compressor": {"name": "topk"}, "warmup": {"steps": 3}},
    "warmup.steps": {"warmup": {"compressor": {"name": "onebit"}}},
}
"""What else must be set, or has to be otherwise than in `settings`."""

_HURRIES = ("deadline_s", "start_s", "silence_s", "heartbeat_s")
"""What two ranks can not keep at its least: a call takes longer."""


def register_each(*, configs: Sequence[dict[str, Any]]) -> list[str]:
    """Register a model with one configuration after the other; return what failed."""
    failures = []
    for config in configs:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of rules without effect
                with registered("mlp", config):
                    pass
        except Exception as error:
            failures.append(f"{config}: {type(error).__name__}: {error}")
    return failures


def numbers(schema: Mapping[str, Any], path: Keys = ()) -> Iterator[tuple[Keys, Mapping[str, Any]]]:
    """Yield where a table takes a number, and what the schema says of it."""
    if "$ref" in schema:
        inner = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        yield from numbers(inner, path)
    for branch in schema.get("anyOf", []):
        yield from numbers(branch, path)
    for item in [schema.get("items", False), *schema.get("prefixItems", [])]:
        yield from numbers(item, path) if item else ()
    for name, inner in schema.get("properties", {}).items():
        yield from numbers(inner, (*path, name))
    if schema.get("type") in ("integer", "number") and "enum" not in schema:
        yield path, schema


def known() -> dict[str, tuple[Keys, Mapping[str, Any]]]:
    """All numbers that can be set, by name."""
    found = {".".join(path): (path, said) for path, said in numbers(SCHEMA)}
    for table in SCHEMA["$defs"].values():
        name = table.get("properties", {}).get("name", {}).get("const")
        if name in COMPRESSORS:
            found |= {f"{name}.{path[0]}": ((name, *path), said) for path, said in numbers(table)}
    return found


KNOWN = known()


def end(said: Mapping[str, Any], most: bool) -> Number:
    """The least or the most of a number."""
    closed, open_ = _MOST if most else _LEAST
    if closed in said:
        return said[closed]
    bound = said[open_]
    if said["type"] == "integer":
        return bound - 1 if most else bound + 1
    return math.nextafter(bound, -math.inf if most else math.inf)


def beyond(said: Mapping[str, Any], most: bool) -> Number:
    """A number that is out of the range, by little."""
    edge = end(said, most)
    if said["type"] == "integer":
        return edge + 1 if most else edge - 1
    return math.nextafter(edge, math.inf if most else -math.inf)


def configuration(path: Keys, value: Any) -> dict[str, Any]:
    """A configuration in which a number has a value."""
    if path[0] in COMPRESSORS:
        more = _TOGETHER.get(".".join(path), {}).get("compressor", {})
        own = {**settings(path[0])["compressor"], **more}
        if path[1] == "rank":
            own.pop("approx_rank", None)  # of which it is another name
        return settings({**own, path[1]: value})
    if path[0] == "rules":
        of = [value] if path[-1] == "shape" else value
        rule = {"match": {path[-1]: of}, "compressor": {"name": "int8"}}
        return settings("topk", rules=[rule])
    config = settings("topk")
    if path == ("trace", "steps"):
        return {**config, "trace": {"path": "/tmp/trace.json", "steps": [value, value]}}
    for section, more in _TOGETHER.get(".".join(path), {}).items():
        config[section] = {**config.get(section, {}), **more}
    inner = config
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = [value] if path[-1] == "densities" else value
    return config


ENDS = [(name, most) for name in KNOWN for most in (False, True)]


def test_every_number_has_a_least_and_a_most() -> None:
    assert len(KNOWN) > 60
    for name, (_, said) in KNOWN.items():
        for keys in (_LEAST, _MOST):
            bounds = [said[key] for key in keys if key in said]
            assert len(bounds) == 1, f"{name} has no range"
            assert math.isfinite(bounds[0]), name


@pytest.mark.parametrize(("name", "most"), ENDS)
def test_ends_of_ranges_load_and_what_is_beyond_names_the_range(name: str, most: bool) -> None:
    path, said = KNOWN[name]
    load_config(configuration(path, end(said, most)))
    with pytest.raises(ConfigError) as caught:
        load_config(configuration(path, beyond(said, most)))
    text = str(caught.value)
    assert " most " in text or " less than " in text
    assert path[-1] in text


@pytest.mark.ranks
@pytest.mark.parametrize("most", [False, True])
def test_with_every_end_of_a_range_a_model_is_registered(most: bool, pools: Pools) -> None:
    hurried = [k for k in KNOWN.values() if not most and k[0][-1] in _HURRIES]
    others = [known for known in KNOWN.values() if known not in hurried]
    for size, chosen in ((1, hurried), (2, others)):
        configs = [configuration(path, end(said, most)) for path, said in chosen]
        failures = pools.get(size).run(register_each, configs=configs, deadline_s=100.0)
        assert failures == [[]] * size
