"""Directed graphs: no share is lost, and ratios come to the mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.collectives.digraphs import DIGRAPHS, Digraph, weighted


def pushed(graph: Digraph, x: np.ndarray, meeting: int) -> np.ndarray:
    ranks = range(graph.size)
    heard = [graph.senders(rank, meeting) for rank in ranks]
    came = [sum(share * x[peer] for peer, share in heard[rank].items()) for rank in ranks]
    return np.array([graph.kept(rank, meeting) * x[rank] + came[rank] for rank in ranks])


@given(name=st.sampled_from([*DIGRAPHS]), size=st.integers(1, 40))
def test_mass_is_conserved_and_ratios_come_to_the_mean(name: str, size: int) -> None:
    graph = DIGRAPHS[name](size)
    x, w = np.random.default_rng(size).normal(size=size), np.ones(size)
    mean = x.mean()
    for meeting in range(40 * size if name == "ring" else 80):
        x, w = pushed(graph, x, meeting), pushed(graph, w, meeting)
        assert math.fsum(w) == pytest.approx(size, rel=1e-12)
    if name == "exponential" or size < 8:
        np.testing.assert_allclose(x / w, mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_one_round_on_the_exponential_graph_is_the_mean_of_a_power_of_two(size: int) -> None:
    graph = DIGRAPHS["exponential"](size)
    assert len(graph.meetings) == math.log2(size)
    x = np.random.default_rng(size).normal(size=size)
    mean = x.mean()
    for meeting in range(len(graph.meetings)):
        x = pushed(graph, x, meeting)
    np.testing.assert_allclose(x, mean, rtol=1e-12, atol=1e-12)


@given(size=st.integers(2, 40), meeting=st.integers(0, 100))
def test_each_rank_sends_to_one_and_hears_of_one(size: int, meeting: int) -> None:
    graph = DIGRAPHS["exponential"](size)
    for rank in range(size):
        (peer,) = graph.receivers(rank, meeting)
        assert peer == (rank + 2 ** (meeting % math.ceil(math.log2(size)))) % size
        assert graph.senders(peer, meeting) == {rank: 0.5}


@st.composite
def shares(draw: st.DrawFn) -> np.ndarray:
    size = draw(st.integers(2, 6))
    entries = st.lists(st.integers(1, 9), min_size=size, max_size=size)
    raw = np.array(draw(st.lists(entries, min_size=size, max_size=size)), dtype=np.float64)
    return raw / raw.sum(0)


@given(p=shares())
def test_shares_of_one_s_own_are_those_of_the_matrix(p: np.ndarray) -> None:
    graph = weighted(p.tolist())
    x = np.arange(1.0, 1 + len(p))
    np.testing.assert_allclose(pushed(graph, x, 3), p @ x, rtol=1e-12)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([], "is not square"),
        ([[1.0], [0.0]], "is not square"),
        ([[1.5, 0.0], [-0.5, 1.0]], "negative share in column 0"),
        ([[0.5, 0.5], [0.4, 0.5]], "column 0 that sums to 0.9"),
        ([[1.0, 0.5], [0.0, 0.5]], "not strongly connected: rank 1 hears nothing of rank 0"),
        ([[0.5, 0.0], [0.5, 1.0]], "not strongly connected: rank 1 tells nothing to rank 0"),
        ([[0.0, 1.0], [1.0, 0.0]], "shares that go round forever"),
    ],
)
def test_other_shares_are_refused(weights: list[list[float]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        weighted(weights)
