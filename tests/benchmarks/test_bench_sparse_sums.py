"""Bytes of sparse sums: what is counted is what passes the busiest port."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from _between_hosts import own_testbeds, warm_ranks
from typer.testing import CliRunner

from benchmarks import sparse_sums
from benchmarks.__main__ import app
from compressa.transports.frames import FRAME_HEADER_BYTES

__all__ = ["own_testbeds", "warm_ranks"]
ELEMS = 20_000


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_after_its_first_step_oktopk_sends_less_than_the_others_from_8_ranks_on(
    correlation: float,
) -> None:
    first, *others = sparse_sums.counted(ELEMS, 8, correlation)
    gtopk, topk = (sparse_sums.known(name, ELEMS, 8) for name in ("gtopk", "topk"))
    assert max(others) < first < topk
    assert max(others) < gtopk < topk


def test_gradients_are_as_alike_as_is_asked() -> None:
    for correlation in (0.0, 0.9):
        found = torch.corrcoef(torch.stack(sparse_sums.gradients(ELEMS, 2, 0, correlation)))[0, 1]
        assert float(found) == pytest.approx(correlation, abs=0.03)


def test_a_port_counts_both_directions_without_the_headers_of_frames() -> None:
    ports = sparse_sums.Ports(2)
    ports.carry(0, 1, 100 + FRAME_HEADER_BYTES, lambda: None, lambda: None)
    assert ports.bytes.tolist() == [[100, 0], [0, 100]]


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_real_processes_send_what_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ["--elems", str(ELEMS), "--ranks", "8", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["sparse-sums", *options])
    assert result.exit_code == 0, result.exception or result.output
    found = sparse_sums.SparseSumsMeasurement.read(file)
    counted = next(row for row in found.counted if row.gradients == "independent")
    for row in found.sent:
        due = getattr(counted, row.method)
        assert due <= row.step_bytes < due + 2000  # headers
