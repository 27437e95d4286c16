"""What compiled code asks of the C library: sockets, waits and the clock, on 64-bit Linux."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba.core import types

from compressa.kernels.cpu._jit import lean_nested

from ._memory import peek, peek_int32, poke

_I32, _I64 = types.int32, types.int64


def _external(name: str, result: Any, *arguments: Any) -> Callable[..., int]:
    """A function of the C library, for compiled code."""
    return cast(Callable[..., int], types.ExternalFunction(name, result(*arguments)))


recv = _external("recv", _I64, _I32, _I64, _I64, _I32)
sendmsg = _external("sendmsg", _I64, _I32, _I64, _I32)
ppoll = _external("ppoll", _I32, _I64, _I64, _I64, _I64)
read = _external("read", _I64, _I32, _I64, _I64)
eventfd_write = _external("eventfd_write", _I32, _I32, _I64)
setsockopt = _external("setsockopt", _I32, _I32, _I32, _I32, _I64, _I32)
malloc = _external("malloc", _I64, _I64)
free = _external("free", types.void, _I64)
_clock_gettime = _external("clock_gettime", _I32, _I32, _I64)
_errno = _external("__errno_location", _I64)

SOL_SOCKET, SO_RCVLOWAT = 1, 18
MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE = 0x40, 0x4000, 0x8000
EINTR, EAGAIN = 4, 11
POLLIN, POLLOUT = 1, 4
_CLOCK_MONOTONIC = 1
_NS = 1_000_000_000

IOV_WORDS, MSGHDR_WORDS = 4, 7


@lean_nested
def errno() -> int:
    """Return why the last call has failed."""
    return peek_int32(_errno())


@lean_nested
def now_ns(spare: int) -> int:
    """Return the time of `time.monotonic` in nanoseconds.

    Args:
        spare: Address of two words that may be written.
    """
    _clock_gettime(np.int32(_CLOCK_MONOTONIC), spare)
    return peek(spare, 0) * _NS + peek(spare, 1)


@lean_nested
def send_two(
    fd: int, message: int, first: int, first_bytes: int, second: int, second_bytes: int, more: bool
) -> int:
    """Offer two pieces of memory to a socket in one call; return how much it has taken, or -1.

    Args:
        fd: The socket.
        message: Address of `MSGHDR_WORDS` + `IOV_WORDS` words that may be written.
        first: Where the first piece is.
        first_bytes: How long; may be 0.
        second: Where the second is.
        second_bytes: How long; may be 0.
        more: Whether something follows at once, which may leave in the same packet.
    """
    iov = message + 8 * MSGHDR_WORDS
    poke(iov, 0, first)
    poke(iov, 1, first_bytes)
    poke(iov, 2, second)
    poke(iov, 3, second_bytes)
    for i in range(MSGHDR_WORDS):
        poke(message, i, 0)
    poke(message, 2, iov)
    poke(message, 3, 2)
    flags = MSG_DONTWAIT | MSG_NOSIGNAL | (MSG_MORE if more else 0)
    return sendmsg(np.int32(fd), message, np.int32(flags))
