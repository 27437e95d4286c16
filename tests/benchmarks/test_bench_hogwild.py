"""`python -m benchmarks hogwild`: it runs on real processes, and they learn."""

from __future__ import annotations

from pathlib import Path

import pytest
from _between_hosts import own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.hogwild import HogwildMeasurement, scales

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("warm_ranks")]
__all__ = ["own_testbeds", "warm_ranks"]


def test_it_says_how_quickly_processes_learn(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ["--turns", "1", "--steps", "400", "--words", "5000", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["hogwild", *options])
    assert result.exit_code == 0, result.exception or result.output
    found = HogwildMeasurement.read(file)
    one, *_, all_of_them = found.rows
    assert one.processes == 1
    assert all_of_them.left[0] < one.left[0] < 0.2  # all work on one model
    assert f"{scales(found, all_of_them.processes):.2f}" in result.output
