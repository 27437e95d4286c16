"""`python -m benchmarks diloco`: our DiLoCo beside torchft's, on two real hosts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from _between_hosts import MARKS, own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.diloco import DiLoCoMeasurement, Settings
from benchmarks.diloco_rank import ALONE, DENSE, METHODS, TORCHFT, perceptron

pytestmark = [*MARKS, pytest.mark.usefixtures("warm_ranks")]
__all__ = ["own_testbeds", "warm_ranks"]

ULP = 2.0**-23
DENSE_BYTES = 4 * sum(p.numel() for p in perceptron().parameters())
missing = importlib.util.find_spec("torchft") is None


def measured(file: Path, *words: str) -> DiLoCoMeasurement:
    options = ["--link", "500mbit", "--every", "4", "--fragments", "2", "--rounds", "1"]
    command = ["diloco", *options, *words, "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, command)
    assert result.exit_code == 0, result.exception or result.output
    return DiLoCoMeasurement.read(file)


def test_a_round_sends_what_compressors_leave(tmp_path: Path) -> None:
    found = measured(tmp_path / "out.json", "--what", "[nbi]*")
    sent = {row.method: row.counted_bytes / DENSE_BYTES for row in found.rows}
    assert list(sent) == Settings(pattern="[nbi]*").methods == list(METHODS)[:5]
    assert sent[ALONE] < 0.01
    for name, bits in {DENSE: 32, "bf16": 16, "int8": 8, "int4": 4}.items():
        assert bits / 32 <= sent[name] < 1.2 * bits / 32


@pytest.mark.skipif(missing, reason="torchft is not installed: pip install torchft==0.2.0")
def test_ours_and_torchft_take_the_same_outer_steps(tmp_path: Path) -> None:
    found = measured(tmp_path / "out.json", "--what", "[nt]o[nr][ec]*")
    rows = {row.method: row for row in found.rows}
    ours, theirs = rows[DENSE], rows[TORCHFT]
    assert ours.largest is not None
    assert len(ours.differences) == len(ours.errors) == len(theirs.errors) == 4
    assert ours.differences[0] <= ULP * ours.largest
    assert max(ours.errors + theirs.errors) <= 2 * ULP * ours.largest
    for row in rows.values():
        assert 1.0 <= row.counted_bytes / DENSE_BYTES < 1.2
        (meeting_s,) = row.meeting_s
        assert meeting_s > 0.8 * DENSE_BYTES * 8 / 500e6
