"""auto: whichever policy is predicted to make the shortest step.

What no step is shorter than, in whatever order its transfers leave, need not be predicted. The
results of some transfers cannot all be there before the first of them is ready, all of them have
been on the wire, and the shortest of their tails is over (Carlier, 1982). Here the transfers are
those whose results would be latest, as many of them as make the bound largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from compressa.schedulers.columns import Columns
from compressa.schedulers.credit import draft_credit
from compressa.schedulers.fifo import draft_fifo
from compressa.schedulers.link import Link
from compressa.schedulers.merge import fused_if_faster
from compressa.schedulers.policy import Conditions, Draft, Policy
from compressa.schedulers.predict import Prediction, outlook
from compressa.schedulers.priority import draft_priority

_ROUNDING = 1e-9  # by which part sums of the same numbers in two orders differ at most


def draft_auto(columns: Columns, conditions: Conditions) -> Draft:
    """Draft by credit, merge, priority or fifo, as predicted; of equals, by the first of these.

    What cannot be shorter, by a bound, is not predicted.

    Args:
        columns: All transfers of one step.
        conditions: Without a link nothing can be predicted; that is by priority then.

    Returns:
        The plan in the making, which says why.
    """
    if conditions.link is None:
        draft = draft_priority(columns, conditions)
        return replace(draft, reason="priority: the link has not been measured")
    tried = list(_tries(columns, conditions, conditions.link))
    draft, ahead = min(tried, key=lambda pair: pair[1].step_s)
    steps = ", ".join(f"{other.policy} {step.step_s:.6g} s" for other, step in tried)
    reason = f"{draft.policy}: predicted are {steps}; no plan is below {ahead.ideal_s:.6g} s"
    return replace(draft, reason=reason)


def _tries(
    columns: Columns, conditions: Conditions, link: Link
) -> Iterator[tuple[Draft, Prediction]]:
    credit = draft_credit(columns, conditions)
    apart = outlook(columns, credit, link, conditions.compute_s)
    yield credit, apart
    if not apart.exposed_s:
        return  # forward never waits: nothing is shorter
    fused = fused_if_faster(credit, apart, conditions, link)
    yield fused
    if least_step_s(columns, link, conditions.compute_s) > fused[1].step_s:
        return  # what fuses nothing is longer
    for other in (draft_priority(columns, conditions), draft_fifo(columns, conditions)):
        yield other, outlook(columns, other, link, conditions.compute_s)


def least_step_s(columns: Columns, link: Link, compute_s: float) -> float:
    """Return what no step is predicted to be shorter than in which every transfer leaves alone.

    Args:
        columns: All transfers of the step.
        link: On what.
        compute_s: B + F; see `Conditions`.

    Returns:
        Seconds, less what sums in another order may differ by.
    """
    wire_s = columns.wire_bytes / link.bytes_per_s + link.overhead_s
    late_s = columns.tails_s(link) - columns.need_s
    rows = np.argsort(-late_s, kind="stable")
    left_s = np.minimum.accumulate(columns.ready_s[rows]) + np.cumsum(wire_s[rows])
    compute_s = max(compute_s, float(columns.need_s.max(initial=0.0)))
    step_s = compute_s + float((left_s + late_s[rows]).max(initial=0.0))
    return step_s * (1 - _ROUNDING)


auto = Policy(
    "auto",
    "whichever of credit, merge, priority and fifo is predicted to make the shortest step",
    draft_auto,
)
