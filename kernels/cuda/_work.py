"""How work is cut into threads and tiles, and numbers that Python waits for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..philox import ROW
from ._device import CTA, WARP, Argument, device, launch

_WARPS_BLOCK = 1024  # elements that a warp goes through sooner than a whole block of threads


def team_for(block: int) -> tuple[str, int]:
    """The end of the kernel's name, and threads of a team, for blocks of so many elements."""
    return ("warps", WARP) if block <= _WARPS_BLOCK else ("ctas", CTA)


def threads_for(elems: int, each: int) -> tuple[int, int]:
    """Teams, and threads of a team, for a kernel whose threads take ``each`` elements at a time."""
    return -(-elems // (each * WARP)), WARP


def threads_for_rows(elems: int) -> tuple[int, int]:
    """The same for kernels that go by rows of random numbers; see ``_rows.cuh``."""
    rows = elems // ROW + 2  # the first and the last may have a few elements only
    return threads_for(rows * ROW if elems else 0, 32)


def new_answer(source: str) -> Any:
    """Return memory for a number that a source's kernels find out, cleared; see `Device.read`."""
    answer = device().empty(1, np.uint64)
    launch(source, "clear_answer", 1, CTA, answer)
    return answer


def ask(source: str, name: str, teams: int, threads: int, *arguments: Argument) -> int:
    """Start a kernel whose last parameter is ``u64* answer``, and return what it finds.

    Args:
        source: See `launch`.
        name: See `launch`.
        teams: See `launch`.
        threads: See `launch`.
        arguments: All but the answer.
    """
    answer = new_answer(source)
    launch(source, name, teams, threads, *arguments, answer)
    return device().read(answer)
