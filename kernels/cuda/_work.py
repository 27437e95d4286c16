"""How work is cut: into teams of threads, and sums of payloads into launches of eight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import Gradient
from ..philox import ROW
from ._arguments import values
from ._device import CTA, WARP, Argument, device, launch

_WARPS_BLOCK = 1024  # elements that a warp goes through sooner than a whole block of threads
_HALF_WARPS_BLOCK = 512  # the same of half a warp, where codes are at random


def team_for(block: int) -> tuple[str, int]:
    """The end of the kernel's name, and threads of a team, for blocks of so many elements."""
    return ("warps", WARP) if block <= _WARPS_BLOCK else ("ctas", CTA)


HELD = {8: (128, 256, 512, 1024), 4: (128, 256, 512, 1024), 2: (256, 512, 1024), 1: (512, 1024)}
"""For codes of so many bits: the blocks that a team holds in registers; see ``_held.cuh``."""


def quantizer_for(bits: int, block: int, *, at_random: bool = False) -> tuple[str, int]:
    """The same for kernels that quantise a block to codes of so many bits."""
    if block not in HELD.get(bits, ()):
        team, threads = team_for(block)
        return f"by_{team}", threads
    most = WARP // 2 if at_random and block <= _HALF_WARPS_BLOCK else WARP
    return f"of_{block}", min(block * bits // 32, most)  # a thread makes four neighbouring bytes


def threads_for(elems: int, each: int) -> tuple[int, int]:
    """Teams, and threads of a team, for a kernel whose threads take ``each`` elements at a time."""
    return -(-elems // (each * WARP)), WARP


def batches_for(elems: int) -> tuple[int, int]:
    """The same for kernels that stream: a block of threads takes two vectors of four a thread."""
    return -(-elems // (2 * 4 * CTA)), CTA


def threads_for_rows(elems: int) -> tuple[int, int]:
    """The same for kernels that go by rows of random numbers; see ``_philox.cuh``."""
    rows = elems // ROW + 2  # the first and the last may have a few elements only
    return threads_for(rows * ROW if elems else 0, 32)


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
