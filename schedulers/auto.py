"""auto: whichever policy is predicted to make the shortest step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compressa.schedulers.bound import least_step_s
from compressa.schedulers.columns import Columns
from compressa.schedulers.credit import draft_credit
from compressa.schedulers.fifo import draft_fifo
from compressa.schedulers.link import Link
from compressa.schedulers.merge import fused_if_faster
from compressa.schedulers.policy import Conditions, Draft, Policy
from compressa.schedulers.predict import Prediction, outlook
from compressa.schedulers.priority import draft_priority


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


auto = Policy(
    "auto",
    "whichever of credit, merge, priority and fifo is predicted to make the shortest step",
    draft_auto,
)
