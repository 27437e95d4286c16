"""merge: small transfers leave in one message, if waiting costs less than a startup.

Every message costs a startup besides its bytes. Where the next transfer is ready before the one at
hand has begun to leave, or less than a startup later, one message for both ends earlier than two
(the condition of MG-WFBP; Shi et al., 2019). It arrives as a whole, though: what is fused must not
make any of it later than it is needed, or than the step is anyway.

Only what a chunk can hold is fused, so that messages can be preempted as before; and if, after all,
the step is predicted to take longer than without, nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from compressa.schedulers.columns import Columns
from compressa.schedulers.credit import chunk_bytes, draft_credit, sized
from compressa.schedulers.link import Link
from compressa.schedulers.policy import Conditions, Draft, Policy
from compressa.schedulers.predict import Prediction, outlook


def draft_merge(columns: Columns, conditions: Conditions) -> Draft:
    """Draft a plan by need, as `credit` does, and fuse what is small.

    Args:
        columns: All transfers of one step.
        conditions: Without a link, nothing is fused.
    """
    apart = draft_credit(columns, conditions)
    if conditions.link is None:
        return replace(apart, policy="merge")
    ahead = outlook(columns, apart, conditions.link, conditions.compute_s)
    return fused_if_faster(apart, ahead, conditions, conditions.link)[0]


def fused_if_faster(
    apart: Draft, ahead: Prediction, conditions: Conditions, link: Link
) -> tuple[Draft, Prediction]:
    """Fuse what is small, unless the step is predicted to take longer.

    Args:
        apart: The plan in the making, without groups.
        ahead: The step as it should go with that.
        conditions: As for any policy.
        link: Their link.

    Returns:
        The plan in the making, and the step as it should go.
    """
    columns, unfused = ahead.columns, replace(apart, policy="merge")
    groups = _groups(ahead, conditions, link)
    if not groups:
        return unfused, ahead
    draft = sized(replace(unfused, groups=groups), columns, conditions)
    fused = outlook(columns, draft, link, ahead.compute_s)
    return (draft, fused) if fused.step_s <= ahead.step_s else (unfused, ahead)


class _Departures:
    """Units in the order in which their first message begins to leave, if nothing is fused.

    Attributes:
        rows: Of their first stages.
        first_bytes: Of these.
        most_bytes: Of their largest stages.
        could_s: When the first message can leave.
        began_s: When it does.
        latest_s: When its last byte may leave without making the step longer.
        shapes: Equal for those whose stages can be fused one by one.
    """

    def __init__(self, ahead: Prediction, link: Link) -> None:
        columns, launched = ahead.columns, ahead.launched()
        rows = launched[columns.first[launched] == launched]
        most_bytes = np.zeros(len(columns), dtype=np.int64)
        np.maximum.at(most_bytes, columns.first, columns.wire_bytes)
        latest_s = np.full(len(columns), np.inf)
        if columns.need_s.any():
            latest_s = columns.need_s + ahead.exposed_s - columns.tails_s(link)
        self.rows = rows
        self.first_bytes = columns.wire_bytes[rows]
        self.most_bytes = most_bytes[rows]
        self.could_s, self.began_s = ahead.could_s[rows], ahead.began_s[rows]
        self.latest_s = latest_s[rows]
        self.shapes = columns.shapes[rows]

    def pairs(self, link: Link, most_bytes: int) -> list[int]:
        """Return the units that may be fused with the next; the others surely not."""
        soon = self.could_s[1:] < self.began_s[:-1] + link.overhead_s
        small = self.most_bytes[1:] + self.most_bytes[:-1] <= most_bytes
        alike = self.shapes[1:] == self.shapes[:-1]
        return np.flatnonzero(soon & small & alike).tolist()


def _groups(ahead: Prediction, conditions: Conditions, link: Link) -> list[list[int]]:
    """Fuse units that follow each other, stage by stage."""
    if not link.overhead_s:
        return []
    columns, departures = ahead.columns, _Departures(ahead, link)
    best = conditions.chunk_bytes or chunk_bytes(int(columns.wire_bytes.sum()), link)
    count = np.bincount(columns.first, minlength=len(columns))
    groups = [departures.rows[begin:end] for begin, end in _runs(departures, link, best)]
    return [(rows + s).tolist() for rows in groups for s in range(count[rows[0]])]


def _runs(departures: _Departures, link: Link, largest_bytes: int) -> Iterator[tuple[int, int]]:
    """Find the runs of units, two at least, that had better leave together."""
    first_bytes, most_bytes = departures.first_bytes.tolist(), departures.most_bytes.tolist()
    could_s, began_s = departures.could_s.tolist(), departures.began_s.tolist()
    latest_s = departures.latest_s.tolist()
    begin = end = first = most = 0
    start_s = due_s = 0.0
    for unit in departures.pairs(link, largest_bytes):
        if unit >= end:
            if end - begin > 1:
                yield begin, end
            begin, end = unit, unit + 1
            first, most = first_bytes[unit], most_bytes[unit]
            start_s, due_s = began_s[unit], latest_s[unit]
        joins = unit + 1
        first, most = first + first_bytes[joins], most + most_bytes[joins]
        soon = could_s[joins] < start_s + link.overhead_s
        start_s, due_s = max(start_s, could_s[joins]), min(due_s, latest_s[joins])
        if soon and most <= largest_bytes and start_s + link.wire_s(first) <= due_s:
            end = joins + 1
    if end - begin > 1:
        yield begin, end


merge = Policy(
    "merge",
    "as credit, and small messages leave as one where waiting costs less than a startup and "
    "nothing gets late",
    draft_merge,
    paper="MG-WFBP, Shi et al. 2019",
)
