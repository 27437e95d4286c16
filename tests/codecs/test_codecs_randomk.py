"""randomk: the same indices on every rank, each with the right probability."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from compressa.codecs import RandomK
from compressa.testing.codec_checks import DRAW


def chosen(codec: RandomK, elems: int, **where: Any) -> list[int]:
    """Indices of the elements that are sent."""
    draw = dataclasses.replace(DRAW, **where)
    payload, out = torch.empty(codec.wire_bytes(elems), dtype=torch.uint8), torch.empty(elems)
    codec.encode(torch.ones(elems), payload, draw)
    codec.decode(payload, out, draw)
    indices: list[int] = out.nonzero()[:, 0].tolist()
    return indices


def test_indices_are_shared_by_ranks_and_stages_and_by_nothing_else() -> None:
    codec = RandomK(density=0.1)
    base = chosen(codec, 200)
    assert chosen(codec, 200, rank=5) == base
    assert chosen(codec, 200, owner=True) == base
    for other in ("seed", "step", "parameter", "start"):
        assert chosen(codec, 200, **{other: 77}) != base, other


@pytest.mark.parametrize(("elems", "density"), [(40, 0.1), (37, 0.2), (5, 0.5)])
def test_exactly_k_are_sent_and_each_with_its_probability(elems: int, density: float) -> None:
    codec, draws = RandomK(density=density), 2000
    kept, counts = codec.kept(elems), np.zeros(elems)
    for step in range(draws):
        indices = chosen(codec, elems, step=step)
        assert len(indices) == kept
        counts[indices] += 1
    edges = np.arange(kept + 1) * elems // kept
    due = np.repeat(1 / np.diff(edges), np.diff(edges))
    # Six standard deviations of a binomial count; 40 elements make a false alarm below 1e-7.
    allowed = 6 * np.sqrt(draws * due * (1 - due))
    assert (np.abs(counts - draws * due) <= allowed).all()
