"""Fences: what a GPU signals when it has come so far, to compiled code that sleeps.

CUDA calls `signal` on a thread of its own, in a stream's order. It knows nothing of Python.
"""

from __future__ import annotations

import numpy as np

from compressa.kernels.cpu._jit import lean, lean_nested

from ._libc import eventfd_write
from ._memory import peek, swap_if

STATE, WAKE, FENCE_WORDS = 0, 1, 2
PENDING, SIGNALLED, DONE, DROPPED = 0, 1, 2, 3


def signal(fence: int) -> None:
    """Signal a fence, unless nobody waits any more; compiled as a function of C.

    Args:
        fence: Its address.
    """
    if swap_if(fence, STATE, PENDING, SIGNALLED):
        eventfd_write(np.int32(peek(fence, WAKE)), 1)
        swap_if(fence, STATE, SIGNALLED, DONE)


@lean_nested
def reached(fence: int) -> bool:
    """Whether a fence is signalled; then all that came before it is there."""
    return not swap_if(fence, STATE, PENDING, PENDING)


@lean
def drop(fence: int) -> bool:
    """Have a fence wake nobody from now on; return whether it will still be signalled."""
    return bool(swap_if(fence, STATE, PENDING, DROPPED))
