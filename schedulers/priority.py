"""priority: what the next forward needs first goes first (P3; Jayarajan et al., 2019).

A transfer is due as long before its unit is needed as its answer and all that comes after it take.
Sending what is due first makes the largest lateness smallest, if all else can be preempted at once
(Horn, 1974; with tails, Jackson). Without chunks it cannot: `credit` adds what that takes.
"""

from __future__ import annotations

import numpy as np
from compressa.schedulers.columns import Columns, Integers
from compressa.schedulers.link import Link
from compressa.schedulers.policy import Conditions, Draft, Policy


def draft_priority(columns: Columns, conditions: Conditions) -> Draft:
    """Draft a plan by need: measured need times where known, else the last unit readied first.

    Args:
        columns: All transfers of one step.
        conditions: Its link says how much earlier than the need something is due; and what is
            fixed there counts.
    """
    return Draft(
        "priority",
        by_need(columns, conditions.link),
        conditions.chunk_bytes,
        conditions.credit_bytes,
    )


def by_need(columns: Columns, link: Link | None) -> Integers:
    """Return int64[rows]: all rows, what is due first first; of equals, the last readied.

    Args:
        columns: All transfers of one step.
        link: Says how much earlier than the need something is due; None: by codec times only.
    """
    due_s = columns.need_s
    if due_s.any():
        due_s = due_s - columns.tails_s(link)
    return np.lexsort((columns.stage, -columns.unit, due_s))


priority = Policy(
    "priority",
    "what the next forward needs first goes first",
    draft_priority,
    paper="P3, Jayarajan et al. 2019",
)
