"""Pace: a token bucket that holds frames back; see `compressa.pacing`."""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean_nested

from . import _words as w
from ._libc import now_ns
from ._memory import larger, peek, poke, smaller, swap_if

_WORD = 8
_NS_BITS = 8_000_000_000  # bits of a byte, and nanoseconds of a second


@lean_nested
def reserve(loop: int, link: int, count: int) -> None:
    """Take the next turn for so many bytes, and note when they may leave; nothing without a pace.

    The bucket is shared, and changed as `SharedEmptyAt.change` does. Only one frame to a peer waits
    at a time, so that what is more urgent comes right behind it.
    """
    bucket, rate = peek(loop, w.BUCKET), peek(loop, w.PACE_BITS_PER_S)
    if bucket == 0:
        return
    now = now_ns(loop + _WORD * w.CLOCK)
    first = peek(link, w.FIRST)
    due = larger(0, count - peek(first, w.PAID_BYTES))
    poke(first, w.PAID_BYTES, 0)
    cost = (due * _NS_BITS + rate - 1) // rate
    while True:
        before = peek(bucket, 0)
        after = larger(before, now - peek(loop, w.BURST_NS)) + cost
        if swap_if(bucket, 0, before, after):
            break
    poke(link, w.NOT_BEFORE_NS, after)
    poke(first, w.WAITING, 1)


@lean_nested
def must_wait(loop: int, link: int) -> bool:
    """Whether the frame that has been cut may not leave yet."""
    until = peek(link, w.NOT_BEFORE_NS)
    if until == 0:
        return False
    if now_ns(loop + _WORD * w.CLOCK) < until:
        return True
    poke(link, w.NOT_BEFORE_NS, 0)
    poke(peek(link, w.FIRST), w.WAITING, 0)
    return False


@lean_nested
def until_a_frame_may_leave(loop: int, timeout_ns: int) -> int:
    """Return for how long to wait, at most until a frame may leave."""
    if peek(loop, w.BUCKET) == 0:
        return timeout_ns
    now = now_ns(loop + _WORD * w.CLOCK)
    for i in range(peek(loop, w.LINK_COUNT)):
        until = peek(peek(loop, w.LINKS) + _WORD * w.LINK_WORDS * i, w.NOT_BEFORE_NS)
        if until:
            timeout_ns = smaller(timeout_ns, larger(0, until - now))
    return timeout_ns
