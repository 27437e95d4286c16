"""`python -m benchmarks exchange` on two real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from _between_hosts import MARKS, own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.exchange.others import missing_mpi, missing_ray
from benchmarks.exchange.plan import BY_NAME, METHODS, PARTS
from benchmarks.exchange.records import ExchangeMeasurement

pytestmark = [*MARKS, pytest.mark.usefixtures("warm_ranks")]
__all__ = ["own_testbeds", "warm_ranks"]


def test_all_methods_are_measured_between_two_hosts(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ["--hosts", "2", "--link", "1gbit", "--size", "32KiB"]
    words += ["--budget", "0.01", "--json", str(file)]
    words += [word for part in PARTS if part != "hosts" for word in ("--part", part)]
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["exchange", *words])
    assert result.exit_code == 0, result.exception or result.output
    measured = ExchangeMeasurement.read(file)
    missing = {"mpi": missing_mpi(), "ray": missing_ray()}
    few = {method.name for method in METHODS if method.least_ranks > 2}
    wanted = {method.name for method in METHODS if not missing.get(method.by)} - few
    rows = {(row.method, row.size_bytes): row for row in measured.rows}
    assert set(rows) == {(name, 1 << 15) for name in wanted}
    (network,) = measured.networks
    assert 0.7e8 < network.line_bytes_per_s < 1.3e8
    for row in measured.rows:
        assert row.counted_bytes is not None
        sent_bytes = BY_NAME[row.method].needs(row.size_bytes, 2).sent_bytes
        assert row.counted_bytes >= 0.97 * sent_bytes
        assert row.line_rate_share < 3  # what a bucket passes at once is most of a message
        assert row.predicted_s is None or row.predicted_s > 0
    for name in wanted:
        assert name in result.stdout or name.startswith("send over")
    assert {omitted.method for omitted in measured.omitted} == BY_NAME.keys() - wanted
    assert "auto, of ours and Gloo" in result.stdout
    assert "all_reduce, of line rate" not in result.stdout  # which is asked from 4 MB on
