"""bound: what no step is shorter than, in whatever order its transfers leave.

The results of some transfers cannot all be there before the first of them is ready, all of them
have been on the wire, and the shortest of their tails is over (Carlier, 1982). Here the transfers
are those whose results would be latest, as many of them as make the bound largest.
"""

from __future__ import annotations

import numpy as np
from compressa.schedulers.columns import Columns
from compressa.schedulers.link import Link

ROUNDING = 1e-9
"""By how much, as a part, sums of the same numbers in two orders differ at most."""


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
    return step_s * (1 - ROUNDING)
