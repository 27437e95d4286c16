"""H by what was measured: a meeting lasts a share of the steps before it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.strategies.cadence import ByLink, Facts

seconds = st.floats(1e-4, 10.0)


def test_the_slower_the_link_the_rarer_ranks_meet() -> None:
    cadence = ByLink(every=3, share=0.25, longest=500)
    assert cadence.choose(0, ()) == 3
    told = [cadence.tell(Facts(0.1, step_s=0.02, meeting_s=s)) for s in (0.001, 0.1, 0.4, 100.0)]
    assert [cadence.choose(9, means) for means in told] == [1, 20, 80, 500]
    assert cadence.choose(9, cadence.tell(Facts(0.1, step_s=0.02, meeting_s=0.0))) == 3


@given(seconds, seconds, st.floats(0.001, 10.0))
def test_no_fewer_steps_would_hide_a_meeting(step_s: float, meeting_s: float, share: float) -> None:
    h = ByLink(every=1, share=share, longest=10**9).choose(5, (step_s, meeting_s))
    assert meeting_s <= h * share * step_s * (1 + 1e-9)
    assert h == 1 or meeting_s > (h - 1) * share * step_s * (1 - 1e-9)
    assert not math.isinf(h)


@pytest.mark.parametrize("means", [(0.0, 0.1), (0.1, 0.0), (-1.0, 0.1)])
def test_times_that_cannot_be_leave_h_as_it_was_asked_for(means: tuple[float, float]) -> None:
    assert ByLink(every=7, share=0.5, longest=9).choose(5, means) == 7
