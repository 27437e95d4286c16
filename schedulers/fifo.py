"""fifo: units in the order in which backward readies them, as DDP itself does."""

from __future__ import annotations

from collections.abc import Sequence

from compressa.schedulers.columns import Columns
from compressa.schedulers.conditions import UNKNOWN, Conditions
from compressa.schedulers.draft import Draft
from compressa.schedulers.plan import Plan, Transfer


def fifo(
    transfers: Sequence[Transfer], conditions: Conditions = UNKNOWN, first_step: int = 0
) -> Plan:
    """Plan by readiness: measured ready times where known, else the units' numbers.

    Args:
        transfers: All transfers of one step.
        conditions: Only what is fixed there counts.
        first_step: First step that follows the plan.

    Returns:
        The plan; a pure function of the arguments.
    """
    columns = Columns.of(transfers)
    return draft_fifo(columns, conditions).plan(columns, first_step)


def draft_fifo(columns: Columns, conditions: Conditions) -> Draft:
    """Draft a plan by readiness."""
    return Draft(
        "fifo",
        columns.in_stages([columns.ready_s]),
        conditions.chunk_bytes,
        conditions.credit_bytes,
    )
