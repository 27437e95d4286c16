"""Checksum: 64 bits that tell whether bytes are still what they were.

The number of bytes, plus the sum, modulo 2^64, of a mix of each 8-byte little-endian word w_i and
its place i; the last word is filled up with zeros. With m = w_i + i A, then m = (m ^ (m >> 32)) B,
then m ^ (m >> 29), all modulo 2^64 and with logical shifts:

* Each step of the mix is a bijection, so a change within one word always changes the sum. Any other
  change by chance goes unseen with a probability of 2^-64. Against intent it is no defence.
* The sum is the same in whatever order a device adds.

A = 0x9E3779B97F4A7C15 and B = 0xBF58476D1CE4E5B9 are odd, with bits all over.
"""

from __future__ import annotations

import numpy as np

from ._arrays import U8, check_array
from ._backends import backend

A, B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
WORD_BYTES = 8


def checksum(data: U8, head: U8 | None = None) -> int:
    """Return the checksum of bytes; waits for the device.

    Example:
        >>> import numpy as np
        >>> data = np.arange(20, dtype=np.uint8)
        >>> checksum(data) == checksum(data[8:], head=data[:8]) != checksum(data[::-1].copy())
        True

    Args:
        data: uint8[n].
        head: uint8[m], m a multiple of 8, which counts as if it came right before; only on a CPU.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("data", data, np.uint8)
    if head is None:
        return int(backend("checksums", data).checksum(data))
    check_array("head", head, np.uint8)
    if head.size % WORD_BYTES:
        raise ValueError(f"head must have a multiple of {WORD_BYTES} bytes, not {head.size}")
    return int(backend("checksums", data, head).checksum(data, head))
