"""Bytes of sparse sums: what is counted is what passes the busiest port."""

from __future__ import annotations

import pytest
import torch

from benchmarks import sparse_sums
from compressa.compressors import COMPRESSORS
from compressa.parameters import ParameterInfo
from compressa.transports.frames import FRAME_HEADER_BYTES

ELEMS = 20_000


@pytest.fixture(autouse=True)
def _few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_sums, "ELEMS", ELEMS)
    monkeypatch.setattr(sparse_sums, "_PARAMETER", ParameterInfo(0, "w", (ELEMS,)))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_after_its_first_step_oktopk_sends_less_than_the_others_from_8_ranks_on(
    correlation: float,
) -> None:
    first, *others = sparse_sums.counted(8, correlation)
    gtopk, topk = (
        sparse_sums.known(COMPRESSORS[name].compressor(), 8) for name in ("gtopk", "topk")
    )
    assert max(others) < first < topk
    assert max(others) < gtopk < topk


def test_gradients_are_as_alike_as_is_asked() -> None:
    for correlation in (0.0, 0.9):
        found = torch.corrcoef(torch.stack(sparse_sums.gradients(2, 0, correlation)))[0, 1]
        assert float(found) == pytest.approx(correlation, abs=0.03)


def test_a_port_counts_both_directions_without_the_headers_of_frames() -> None:
    ports = sparse_sums.Ports(2)
    ports.carry(0, 1, 100 + FRAME_HEADER_BYTES, lambda: None, lambda: None)
    assert ports.bytes.tolist() == [[100, 0], [0, 100]]
