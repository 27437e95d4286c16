"""fifo: units in the order in which backward readies them, as DDP itself does."""

from __future__ import annotations

from collections.abc import Sequence

from compressa.schedulers.plan import Plan, Transfer, staggered


def fifo(transfers: Sequence[Transfer], first_step: int = 0) -> Plan:
    """Plan by readiness: measured ready times where known, else the units' numbers.

    Args:
        transfers: All transfers of one step.
        first_step: First step that follows the plan.

    Returns:
        The plan; a pure function of the arguments.
    """
    ready = {t.unit: (t.ready_s, t.unit) for t in transfers if t.stage == 0}
    return Plan(staggered(sorted(ready, key=ready.__getitem__), transfers), first_step)
