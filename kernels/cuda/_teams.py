"""Which team takes a block of elements: few for a warp, more for a whole block of threads."""

from __future__ import annotations

from ._device import CTA, WARP

_WARPS_BLOCK = 1024  # elements that a warp goes through sooner than a whole block of threads


def team_for(block: int) -> tuple[str, int]:
    """Return the end of the kernel's name, and the threads of a team."""
    return ("warps", WARP) if block <= _WARPS_BLOCK else ("ctas", CTA)
