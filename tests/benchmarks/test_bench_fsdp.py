"""`python -m benchmarks fsdp`: FSDP2 in float32 and in int8, on four real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from _between_hosts import MARKS, own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.fsdp import FSDPMeasurement, Settings, relative_loss, speed_up
from benchmarks.fsdp_rank import FLOAT32, GRADIENTS, INT8, METHODS

pytestmark = [*MARKS, pytest.mark.usefixtures("warm_ranks")]
__all__ = ["own_testbeds", "warm_ranks"]


def test_it_sends_what_int8_leaves_and_trains_as_well(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ["--link", "200mbit", "--turns", "1", "--steps", "1", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["fsdp", *options])
    assert result.exit_code == 0, result.exception or result.output
    found = FSDPMeasurement.read(file)
    rows = {row.method: row for row in found.rows}
    assert list(rows) == Settings().methods == list(METHODS)
    dense_bytes = 4 * found.header.parameters * 3 / 4  # what leaves a rank of four
    for method, gathers in ((GRADIENTS, 8), (INT8, 2)):  # forward and backward, of float32 or int8
        due = dense_bytes * (1 + gathers) / 4
        assert due < rows[method].counted_bytes < 1.1 * due
    assert rows[FLOAT32].counted_bytes > 3 * dense_bytes  # Gloo's reduce-scatter sums for all
    assert speed_up(found.rows) > 1
    assert abs(relative_loss(found.rows) - 1) < 0.01
    assert f"{speed_up(found.rows):.2f} times faster" in result.output
