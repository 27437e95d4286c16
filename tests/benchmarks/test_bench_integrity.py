"""`python -m benchmarks integrity`: steps that compare replicas and steps that do not, in turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from _between_hosts import own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.integrity import IntegrityMeasurement

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("warm_ranks")]
__all__ = ["own_testbeds", "warm_ranks"]


def test_steps_that_compare_replicas_are_timed_beside_others(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ["--layers", "1", "--layers", "2", "--pairs", "2", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["integrity", *options])
    assert result.exit_code == 0, result.exception or result.output
    one, two = IntegrityMeasurement.read(file).rows
    assert (one.parameters, two.parameters) == (1025 * 1024, 2 * 1025 * 1024)
    assert two.share == pytest.approx((two.ratio - 1) / 100)  # of the default's hundred steps
    for row in (one, two):
        assert 0.1 < row.ratio < 10
        assert f"{row.parameters:,}" in result.output
