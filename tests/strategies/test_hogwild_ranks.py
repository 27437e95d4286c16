"""hogwild on real ranks: one memory, and nothing is left of it."""

from __future__ import annotations

import itertools
import math

import pytest
from _ranks import Group, Pools, same
from _shared_updates import in_turns, lost_and_left, other_dtypes, separable, sparse

pytestmark = pytest.mark.ranks


def test_what_one_rank_writes_the_others_read(two: Group) -> None:
    first, second = two.run(in_turns)
    assert first[:-1] == second[:-1]
    for before, after in itertools.pairwise(first):
        assert before != after
    assert (first[-1], second[-1]) == (0.0, 1.0)


def test_tensors_of_any_kind_are_shared(two: Group) -> None:
    (found,) = same(two.run(other_dtypes))
    assert found["norm.running_mean"] == "[3.0, 3.0, 3.0]"
    assert found["empty"] == "[]"


def test_sparse_updates_at_the_same_time_converge(four: Group) -> None:
    assert max(four.run(sparse, steps=1500)) < 0.05


def test_it_takes_no_more_steps_than_the_theorem_says(two: Group) -> None:
    """Niu et al. (2011), Proposition 4.1, of one element in a step of n, and so c = L = Omega = 1,
    M = n, and Delta = rho = 1 / n; with tau = 4 updates of the other rank between a rank's reading
    and its writing.
    """
    n, tau, share, due = 16, 4, 0.99, 2.0
    rho = delta = 1 / n
    late = 6 * tau * rho
    rate = share * due / (2 * n**2 * (1 + late + 4 * tau**2 * delta**0.5))
    first = n / 2
    steps = 2 * n**2 * (1 + late + 6 * tau**2 * delta**0.5) * math.log(n / due) / (share * due)
    found = same(two.run(separable, elems=n, steps=math.ceil(steps / 2), rate=rate))
    assert found[0] == first
    assert found[1] <= due


def test_a_lost_rank_is_named_and_nothing_is_left(pools: Pools) -> None:
    group = pools.fresh(2)
    outcomes = group.outcomes(lost_and_left)
    group.end()
    assert outcomes[0].value == [1, 0], outcomes[0].explain()
