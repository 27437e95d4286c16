"""Measurements as files: what is written can be read, and nothing else can."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernels import Measurement, Row
from benchmarks.kernels.records import Header
from compressa.errors import ConfigError

FIELDS = [
    "benchmark",
    "case",
    "metric",
    "unit",
    "median",
    "p20",
    "p80",
    "limit_ratio",
    "peer",
    "peer_median",
    "device",
    "threads",
    "version",
    "timestamp",
]


def row(**changes: Any) -> Row:
    return Row.model_validate(
        {
            "benchmark": "kernels",
            "case": "int8 with residual @ 25000000",
            "metric": "time",
            "unit": "ms",
            "median": 10.0,
            "p20": 9.5,
            "p80": 11.0,
            "limit_ratio": 0.8,
            "peer": "torch operations",
            "peer_median": 50.0,
            "device": "cpu",
            "threads": 2,
            "version": "0.1.0",
            "timestamp": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        }
        | changes
    )


def whole() -> Measurement:
    header = Header.here(caches_bytes={"L2": 1 << 20})
    return Measurement(header=header, rows=[row(), row(limit_ratio=None)])


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = whole()
    written.write(tmp_path / "new" / "kernels.json")
    assert Measurement.read(tmp_path / "new" / "kernels.json") == written
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["kernels.json"]


def test_rows_have_the_fields_of_the_format_in_order(tmp_path: Path) -> None:
    whole().write(tmp_path / "kernels.json")
    found = json.loads((tmp_path / "kernels.json").read_text())
    assert [list(row) for row in found["rows"]] == [FIELDS, FIELDS]
    assert found["rows"][0]["timestamp"] == "2026-01-02T03:04:05Z"
    assert found["header"]["format_version"] == 1
    assert {"torch", "numpy", "numba", "compressa"} < set(found["header"]["versions"])


def test_a_row_knows_its_case_its_size_and_its_speed_up() -> None:
    assert (row().name, row().elems, row().speedup) == ("int8 with residual", 25_000_000, 5.0)
    assert row(peer=None, peer_median=None).speedup is None
    assert row(peer="bitsandbytes: not installed", peer_median=None).speedup is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"p20": 12.0}, "p20 <= median <= p80 does not hold"),
        ({"peer": None}, "a median of a peer that has no name"),
        ({"median": -1.0}, "rows.0.median"),
        ({"median": "Infinity"}, "rows.0.median"),
        ({"case": "int8"}, "rows.0.case"),
        ({"unit": "hours"}, "rows.0.unit"),
        ({"timestamp": "2026-01-02T03:04:05"}, "rows.0.timestamp"),
        ({"note": ""}, "rows.0.note"),
    ],
)
def test_a_wrong_row_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    file = tmp_path / "kernels.json"
    content = json.loads(whole().model_dump_json())
    content["rows"][0] |= changes
    file.write_text(json.dumps(content))
    with pytest.raises(
        ConfigError, match="is no measurement of `python -m benchmarks kernels`"
    ) as caught:
        Measurement.read(file)
    assert sentence in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("missing", FIELDS)
def test_every_field_is_required(tmp_path: Path, missing: str) -> None:
    file = tmp_path / "kernels.json"
    content = json.loads(whole().model_dump_json())
    del content["rows"][0][missing]
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"rows\.0\.{missing}: Field required"):
        Measurement.read(file)


def test_what_is_cut_off_missing_or_of_a_later_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    with pytest.raises(ConfigError, match=r"kernels\.json cannot be read: No such file"):
        Measurement.read(file)
    text = whole().model_dump_json()
    file.write_text(text[: len(text) // 2])
    with pytest.raises(ConfigError, match="the whole: Invalid JSON"):
        Measurement.read(file)
    file.write_text(text.replace('"format_version":1', '"format_version":2'))
    with pytest.raises(ConfigError, match=r"header\.format_version"):
        Measurement.read(file)
