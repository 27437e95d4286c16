"""Graphs of neighbours: doubly stochastic, connected, and nearer to the mean in each step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.collectives.graphs import GRAPHS, Graph


@given(name=st.sampled_from([*GRAPHS]), size=st.integers(1, 40), step=st.floats(0.01, 1.0))
def test_rows_and_columns_sum_to_one_and_the_mean_is_approached(
    name: str, size: int, step: float
) -> None:
    graph = GRAPHS[name](size).lazy(step)
    weights = np.array(graph.weights)
    np.testing.assert_allclose(weights.sum(0), 1.0, rtol=1e-9)
    np.testing.assert_allclose(weights.sum(1), 1.0, rtol=1e-9)
    assert (weights >= 0).all()
    x = np.random.default_rng(size).normal(size=size)
    apart, nearer = x - x.mean(), weights @ x - x.mean()
    assert np.linalg.norm(nearer) <= (1 - graph.gap + 1e-9) * np.linalg.norm(apart) + 1e-12
    for rank in range(size):
        for peer, weight in graph.neighbours(rank).items():
            assert graph.neighbours(peer)[rank] == weight


@pytest.mark.parametrize(
    ("name", "size", "degree"),
    [("ring", 8, 2), ("ring", 2, 1), ("torus", 16, 4), ("exponential", 16, 7), ("complete", 5, 4)],
)
def test_each_has_as_many_neighbours_as_the_graph_says(name: str, size: int, degree: int) -> None:
    graph = GRAPHS[name](size)
    assert {len(graph.neighbours(rank)) for rank in range(size)} == {degree}


def test_one_step_on_the_complete_graph_is_the_mean() -> None:
    assert GRAPHS["complete"](7).gap == pytest.approx(1.0)
    assert GRAPHS["ring"](16).gap < GRAPHS["torus"](16).gap < GRAPHS["exponential"](16).gap


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ((), "is not square"),
        (((1.0,), (1.0,)), "is not square"),
        (((1.5, -0.5), (-0.5, 1.5)), "negative weight in row 0"),
        (((0.5, 0.4), (0.4, 0.5)), "row 0 that sums to 0.9"),
        (((0.5, 0.5, 0.0), (0.0, 0.5, 0.5), (0.5, 0.0, 0.5)), "is not symmetric"),
        (((1.0, 0.0), (0.0, 1.0)), "not connected: rank 1 hears nothing"),
    ],
)
def test_other_weights_are_refused(weights: tuple[tuple[float, ...], ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Graph(weights)
