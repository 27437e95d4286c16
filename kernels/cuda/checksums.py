"""Checksum of bytes on a GPU; see :mod:`compressa.kernels.checksums`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8
from ..checksums import WORD_BYTES
from ._later import ask
from ._work import threads_for


def checksum(data: U8) -> int:
    """Waits for the GPU."""
    threads = threads_for(data.size, WORD_BYTES)
    total = ask("checksums", "sum_of_words", *threads, data, np.int64(data.size))
    return (data.size + total) % (1 << 64)
