"""`python -m benchmarks schedule` on two real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from _between_hosts import MARKS, own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.schedule.plan import EXCHANGED
from benchmarks.schedule.records import ScheduleMeasurement
from benchmarks.schedule.training import ELEMS

pytestmark = [*MARKS, pytest.mark.usefixtures("warm_ranks")]
__all__ = ["own_testbeds", "warm_ranks"]


def test_steps_are_measured_between_two_hosts(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ["--part", "steps", "--compressor", "int8", "--ratio", "4", "--what", "hook*"]
    words += ["--link", "500mbit", "--budget", "0", "--rounds", "1", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["schedule", *words])
    assert result.exit_code == 0, result.exception or result.output
    found = ScheduleMeasurement.read(file)
    (case,) = found.cases
    assert case.communication_s > ELEMS / (500e6 / 8), "as fast as the link, and no faster"
    assert {step.method for step in found.steps} == {EXCHANGED, "hook, fifo"}
    for step in found.steps:
        assert step.median_s > 0.8 * case.communication_s
        assert step.simulated_s is None, "the link was not measured: nothing is planned by it"
        assert step.method in result.stdout
    assert "step, of the ideal" not in result.stdout  # which is asked at other ratios
