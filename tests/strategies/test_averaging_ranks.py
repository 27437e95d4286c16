"""Strategies that average every so many steps: the iterates are those of the papers' algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from _attached import history
from _averaging_oracle import trained
from _ranks import Group, Pools, same
from _ranks import settings as compressed
from _served import served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.ranks

SAME = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(group: Group, ranks: int, strategy: dict[str, Any], steps: int) -> None:
    """All ranks' parameters after each step are the oracle's, but for float32's rounding."""
    found = group.run(history, config={"strategy": strategy}, steps=steps)
    for step, due in enumerate(trained(strategy, ranks, steps)):
        for rank, values in enumerate(due):
            for name, value in values.items():
                got = found[rank][step][name]
                np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5, err_msg=f"{step}")
    same([each[-1] for each in found])


@SAME
@given(every=st.integers(1, 7), steps=st.integers(1, 15))
def test_local_sgd_is_the_mean_of_all_every_h_steps(every: int, steps: int, two: Group) -> None:
    check(two, 2, {"name": "local_sgd", "every": every}, steps)


@SAME
@given(every=st.integers(1, 7), steps=st.integers(1, 15), pull=st.floats(0.1, 1.0))
def test_easgd_draws_ranks_to_a_centre(every: int, steps: int, pull: float, four: Group) -> None:
    check(four, 4, {"name": "easgd", "every": every, "pull": pull}, steps)


@st.composite
def diloco(draw: st.DrawFn) -> dict[str, Any]:
    every = draw(st.integers(1, 9))
    fragments = draw(st.integers(1, min(every, 3)))
    nesterov = draw(st.booleans())
    return {
        "name": "diloco",
        "every": every,
        "fragments": fragments,
        "overlap_steps": draw(st.integers(0, min(every // fragments, every - 1))),
        "mixing": draw(st.sampled_from([0.0, 0.5])),
        "outer_rate": draw(st.floats(0.1, 1.0)),
        "outer_momentum": draw(st.floats(0.1, 0.9)) if nesterov else 0.0,
        "nesterov": nesterov,
    }


@SAME
@given(strategy=diloco(), steps=st.integers(1, 20))
def test_diloco_takes_outer_steps_by_fragments(
    strategy: dict[str, Any], steps: int, two: Group
) -> None:
    check(two, 2, strategy, steps)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    "compressor",
    [
        "fp8",
        "int4",
        "int2",
        {"name": "topk", "density": 0.3},
        "powersgd",
        {"name": "demo", "kept": 8},
    ],
    ids=str,
)
def test_outer_gradients_are_sent_by(
    compressor: str | dict[str, Any], streams: bool, pools: Pools
) -> None:
    """Ranks hold the same bits in the end, and what they hold is learned."""
    strategy: dict[str, Any] = {"name": "diloco", "every": 4, "outer_momentum": 0.5}
    if streams:
        strategy |= {"fragments": 2, "overlap_steps": 1, "mixing": 0.3}
    config = compressed(compressor, strategy=strategy, dense_below={"elems": 4})
    found = pools.get(3).run(served, config=config, steps=200, rate=0.01)
    same([values for _, _, values, _, _ in found])
    for first, last, *_ in found:
        assert last < 0.5 * first
