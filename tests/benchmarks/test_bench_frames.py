"""`python -m benchmarks frames`: steps with checksums and steps with MACs, in turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from _between_hosts import own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.frames import FramesMeasurement
from compressa.errors import ConfigError

__all__ = ["own_testbeds", "warm_ranks"]


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_steps_with_checksums_and_with_macs_are_timed(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ["--what", "int8", "--pairs", "2", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["frames", *options])
    assert result.exit_code == 0, result.exception or result.output
    (row,) = FramesMeasurement.read(file).rows
    assert row.compressor == "int8"
    assert 0.1 < row.ratio < 10
    assert f"{row.ratio:.3f}" in result.output


def test_a_compressor_that_is_not_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="no name matches 'int4'; there are: none, int8"):
        CliRunner().invoke(app, ["frames", "--what", "int4"], catch_exceptions=False)
