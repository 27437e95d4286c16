"""priority: what the next forward needs first goes first (ByteScheduler; Peng et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

from compressa.schedulers.plan import Plan, Transfer, staggered


def priority(transfers: Sequence[Transfer], first_step: int = 0) -> Plan:
    """Plan by need: measured need times where known, else the last unit readied goes first.

    Args:
        transfers: All transfers of one step.
        first_step: First step that follows the plan.

    Returns:
        The plan; a pure function of the arguments.
    """
    need = {t.unit: (t.need_s, -t.unit) for t in transfers if t.stage == 0}
    return Plan(staggered(sorted(need, key=need.__getitem__), transfers), first_step)
