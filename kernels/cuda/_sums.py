"""Sums of several payloads, eight to a launch; see ``_sums.cuh``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import Gradient
from ._arguments import values
from ._device import Argument, device, launch

_MOST = 8  # payloads of a launch; as in _sums.cuh


def launch_sums(
    source: str,
    name: str,
    teams: int,
    threads: int,
    arrays: Sequence[Sequence[Argument] | None],
    out: Gradient,
    *rest: Argument,
) -> None:
    """Start a kernel that sums payloads, as often as it takes; what is rounded is so in the last.

    Args:
        source: See `launch`.
        name: See `launch`.
        teams: See `launch`.
        threads: See `launch`.
        arrays: For each array that a payload consists of, that of every payload; or None.
        out: float32, float16, or bfloat16 as uint16.
        rest: What follows after the arrays, the sums so far and ``out``.
    """
    count = max((len(column) for column in arrays if column is not None), default=0)
    before, total = None, _total(count, out)
    for first in range(0, max(count, 1), _MOST):
        some = [array for column in arrays for array in _padded(column, first)]
        into = out if first + _MOST >= count else total
        launch(source, name, teams, threads, *some, before, *values(into), *rest)
        before = total


def _total(count: int, out: Gradient) -> Any:
    """Where sums lie from one launch to the next."""
    if count <= _MOST or out.dtype == np.float32:
        return out
    return device().empty(out.size, np.float32)


def _padded(column: Sequence[Argument] | None, first: int) -> list[Argument]:
    some = [] if column is None else list(column[first : first + _MOST])
    return some + [None] * (_MOST - len(some))
