"""Profiles, links, traces and measurements come from outside: they are read and used, or refused.

A file that is well formed is changed at places, or in its bytes. What reads it raises `ConfigError`
and nothing else; what is read then can be worked with.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import profile
from test_bench_records import whole
from test_link_file import favouring
from test_tracing_files import small

from benchmarks.kernels import Measurement
from compressa.config import ConfigWarning
from compressa.engine.measuring import profile_file
from compressa.engine.start import link_file
from compressa.errors import ConfigError
from compressa.simulation import Scenario, simulate
from compressa.tracing import reader
from compressa.tracing.summary import summarise

HUGE = [10**400, 2**63, 2**53 + 1, -1, 1e308, 5e-324, -0.0, float("nan"), float("inf"), 10**9]
ODD = ["", "\x00", "\x1b[2J\n", "..", "9" * 5000, "ring", "float32", "x" * 100_000]
JUNK = st.sampled_from([*HUGE, *ODD, None, True, [], {}, [[]] * 3]) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def use_link(path: Path) -> None:
    figures = link_file.read(path)
    for pace in (None, 1e6):
        costs = figures.costs_at(pace)
        for size_bytes in (1, 1 << 20, 1 << 30):
            for ranks in (2, 64):
                assert (
                    costs.time_s(costs.best(size_bytes, ranks, backend=True), size_bytes, ranks)
                    >= 0
                )


def use_profile(path: Path) -> None:
    scenario = Scenario.of(profile_file.read(path), hosts=2, bandwidth_bits_per_s=1e9)
    elems = sum(row.elems for row in scenario.file.parameters)
    if elems < 1 << 20:  # a simulation of more takes its time
        simulate(scenario)


def use_trace(path: Path) -> None:
    summarise(reader.read(path))


def use_measurement(path: Path) -> None:
    for row in Measurement.read(path).rows:
        assert row.name
        assert row.elems >= 0
        assert row.speedup is None or row.speedup >= 0


def profiled() -> dict[str, Any]:
    layers = [(4000, 0.1, 0.0), (4000, 0.05, 0.02)]
    return json.loads(profile(layers, backward_s=0.1, forward_s=0.05).model_dump_json())


Kind = tuple[dict[str, Any], Callable[[Path], None]]
KINDS: dict[str, Kind] = {
    "link": (favouring("ring"), use_link),
    "profile": (profiled(), use_profile),
    "trace": (small(), use_trace),
    "measurement": (json.loads(whole().model_dump_json()), use_measurement),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a JSON value, the whole among them."""
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    return [path, *(p for key, inner in items for p in places(inner, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def judge(use: Callable[[Path], None], path: Path) -> None:
    with warnings.catch_warnings(), contextlib.suppress(ConfigError):
        warnings.simplefilter("ignore", ConfigWarning)
        use(path)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_file_is_used_or_refused(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    value, use = KINDS[kind]
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(places(value)))
        value = changed(value, path, data.draw(JUNK))
    (tmp_path / "file").write_text(json.dumps(value))
    judge(use, tmp_path / "file")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_bytes_are_used_or_refused(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    value, use = KINDS[kind]
    text = bytearray(json.dumps(value).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "file").write_bytes(text[: data.draw(st.integers(0, len(text)))])
    judge(use, tmp_path / "file")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "9" * 100_000, "", "\x00"])
def test_what_is_deep_or_long_is_refused(kind: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ConfigError) as caught:
        KINDS[kind][1](tmp_path / "file")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_that_no_file_can_have_is_refused(kind: str) -> None:
    for path in ("file\0", "/dev/null/file"):
        with pytest.raises(ConfigError, match="cannot be read"):
            KINDS[kind][1](Path(path))
