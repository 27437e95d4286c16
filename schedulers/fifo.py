"""fifo: units in the order in which backward readies them, as DDP itself does."""

from __future__ import annotations

from compressa.schedulers.columns import Columns
from compressa.schedulers.policy import Conditions, Draft, Policy


def draft_fifo(columns: Columns, conditions: Conditions) -> Draft:
    """Draft a plan by readiness: measured ready times where known, else the units' numbers.

    Args:
        columns: All transfers of one step.
        conditions: Only what is fixed there counts.
    """
    return Draft(
        "fifo",
        columns.in_stages([columns.ready_s]),
        conditions.chunk_bytes,
        conditions.credit_bytes,
    )


fifo = Policy("fifo", "as backward readies units", draft_fifo, overtaking=False)
