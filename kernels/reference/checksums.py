"""Checksum in NumPy; see :mod:`compressa.kernels.checksums`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8
from ..checksums import WORD_BYTES, A, B


def checksum(data: U8) -> int:
    """See :func:`compressa.kernels.checksums.checksum`."""
    words = np.zeros(-(-data.size // WORD_BYTES), "<u8")
    words.view(np.uint8)[: data.size] = data
    m = words + np.arange(words.size, dtype=np.uint64) * np.uint64(A)
    m = (m ^ (m >> np.uint64(32))) * np.uint64(B)
    m ^= m >> np.uint64(29)
    return (data.size + int(m.sum(dtype=np.uint64))) % (1 << 64)
