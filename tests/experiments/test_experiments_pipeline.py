"""The GPT cut in two: its ways train on real processes, and leave a file like the committed one."""

from __future__ import annotations

from pathlib import Path

import pipeline
import pytest
from _between_hosts import own_testbeds, warm_ranks
from pipeline import WAYS, PipelineMeasurement
from typer import Typer
from typer.testing import CliRunner

MEASURED = Path(__file__).parents[2] / "docs" / "measurements" / "pipeline.json"
__all__ = ["own_testbeds", "warm_ranks"]


def test_the_committed_file_has_all_ways(tmp_path: Path) -> None:
    found = PipelineMeasurement.read(MEASURED)
    assert [row.way for row in found.rows] == [*WAYS]
    found.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == MEASURED.read_bytes()


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_a_way_trains_and_sends_what_is_left(tmp_path: Path) -> None:
    file, app = tmp_path / "out.json", Typer()
    app.command()(pipeline.main)
    words = ["--steps", "32", "--what", "int8", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, words)
    assert result.exit_code == 0, result.exception or result.output
    (row,) = PipelineMeasurement.read(file).rows
    committed = {row.way: row for row in PipelineMeasurement.read(MEASURED).rows}["int8"]
    assert row.activation_bytes_per_step == committed.activation_bytes_per_step
    assert row.last_epoch_loss < row.first_loss == pytest.approx(committed.first_loss, rel=1e-3)
