"""`python -m benchmarks steps` on two real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from _between_hosts import MARKS, own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.steps.messages import OPERATIONS
from benchmarks.steps.plan import Settings
from benchmarks.steps.records import StepsMeasurement

pytestmark = [*MARKS, pytest.mark.usefixtures("warm_ranks")]
__all__ = ["own_testbeds", "warm_ranks"]


def test_all_methods_take_turns_between_two_hosts(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ["--network", "2x500mbit", "--model", "mlp", "--compressor", "int8"]
    words += ["--rounds", "2", "--budget", "0", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["steps", *words])
    assert result.exit_code == 0, result.exception or result.output
    found = StepsMeasurement.read(file)
    (case,) = found.cases
    assert (case.hosts, case.link, case.model) == (2, "500mbit", "mlp")
    steps = {step.method: step for step in found.of(case)}
    assert set(steps) == {method.name for method in Settings(compressors=["int8"]).methods}
    dense_bytes = 4 * case.parameters
    assert steps["compute alone"].link_bytes < 0.01 * dense_bytes
    for name in ("DDP float32", "none, hook"):
        assert 1.0 * dense_bytes <= steps[name].counted_bytes < 1.2 * dense_bytes
    for name in ("int8, hook", "int8, overlapped"):
        ours = steps[name]
        assert ours.sent_bytes is not None
        assert ours.kernel_bytes is not None
        assert ours.sent_bytes <= ours.counted_bytes < 1.2 * ours.sent_bytes
        assert ours.median_s > 0.8 * ours.sent_bytes / case.line_bytes_per_s
    assert {row.what for row in found.messages} == set(OPERATIONS)
    for name in steps:
        assert name in result.stdout
    assert "none over DDP" in result.stdout
