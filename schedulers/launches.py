"""launches: the one order in which all ranks launch, where a transport needs one.

A plan's order says what is more urgent. Launched in that order, what is needed first, and readied
last, would hold back all the rest. So the order is that in which the transfers should begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from compressa.schedulers.columns import Columns
from compressa.schedulers.conditions import UNKNOWN, Conditions
from compressa.schedulers.draft import Draft
from compressa.schedulers.plan import Name, Plan, Transfer
from compressa.schedulers.predict import outlook


def launches(
    transfers: Sequence[Transfer], plan: Plan, conditions: Conditions = UNKNOWN
) -> tuple[Name, ...]:
    """Return a total order of launches: each stage after the one that it waits for.

    Args:
        transfers: All transfers of one step.
        plan: What is more urgent.
        conditions: Without a link, or if no ready time is known, the order is that of readiness.

    Returns:
        (unit, stage), first to last; a pure function of the arguments.
    """
    columns = Columns.of(transfers)
    draft = Draft.of(plan, columns)
    if conditions.link is None or not columns.ready_s.any():
        rows = columns.in_stages([columns.ready_s])
    else:
        rows = outlook(columns, draft, conditions.link, conditions.compute_s).launched()
    return tuple(columns.names[row] for row in rows.tolist())
