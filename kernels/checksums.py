"""Checksum: 64 bits that tell whether bytes are still what they were.

The number of bytes, plus the sum, modulo 2^64, of a mix of each 8-byte little-endian word w_i and
its index i; the last word is filled up with zeros. With m = w_i + i A, then m = (m ^ (m >> 32)) B,
then m ^ (m >> 29), all modulo 2^64 and with logical shifts:

* Each step of the mix is a bijection, so a change within one word always changes the sum. Any other
  change by chance goes unseen with a probability of 2^-64. Against intent it is no defence.
* The sum is the same in whatever order a device adds.

A = 0x9E3779B97F4A7C15 and B = 0xBF58476D1CE4E5B9 are odd, with bits all over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ._arrays import U8, check_array
from ._backends import backend

A, B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
WORD_BYTES = 8


def checksum(data: U8) -> int:
    """Return the checksum of bytes; waits for the device.

    Example:
        >>> import numpy as np
        >>> data = np.arange(20, dtype=np.uint8)
        >>> checksum(data) == checksum(data.copy()) != checksum(data[::-1].copy())
        True

    Args:
        data: uint8[n].

    Raises:
        TypeError: The dtype is wrong.
        ValueError: The shape or the layout is wrong.
    """
    check_array("data", data, np.uint8)
    if kernel := backend("checksums", data):
        return int(kernel.checksum(data))
    words = np.zeros(-(-data.size // WORD_BYTES), "<u8")
    words.view(np.uint8)[: data.size] = data
    m = words + np.arange(words.size, dtype=np.uint64) * np.uint64(A)
    m = (m ^ (m >> np.uint64(32))) * np.uint64(B)
    m ^= m >> np.uint64(29)
    return (data.size + int(m.sum(dtype=np.uint64))) % (1 << 64)


def checksum_of_memory(data: memoryview) -> int:
    """Return the checksum of contiguous memory of the host, without checks: of short messages.

    Args:
        data: Any number of bytes.
    """
    return _compiled()(np.frombuffer(data, np.uint8)) if len(data) else 0


@cache
def _compiled() -> Callable[[U8], int]:
    """The function is looked up once: with `backend` it would take as long as its work."""
    compiled: Callable[[U8], int] = backend("checksums", np.empty(0, np.uint8)).checksum_of
    return compiled
