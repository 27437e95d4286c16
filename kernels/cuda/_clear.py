"""Clear: zeros in memory of a GPU."""

from __future__ import annotations

from .._arrays import U8
from ._arguments import i64
from ._device import launch
from ._work import threads_for


def clear(out: U8) -> None:
    """Write zeros."""
    launch("bitpack", "clear_bytes", *threads_for(out.size, 16), out, i64(out.size), None)
