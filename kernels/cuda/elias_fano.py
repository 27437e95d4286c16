"""Elias-Fano on a GPU; see :mod:`compressa.kernels.elias_fano`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8, U32
from ._device import device, launch
from ._later import new_answer
from ._work import threads_for


def write_parts(indices: U32, n: int, low_bits: int, low: U8, high: U8, check: bool) -> bool:
    """Write both parts, if the indices are increasing numbers below n; return whether they are.

    The kernels that write look at what the first one has found, so the only wait is at the end;
    without a check there is none.
    """
    count, width = np.int64(indices.size), np.int32(low_bits)
    refused = new_answer("bitpack") if check else None
    fours, bytes_ = threads_for(indices.size, 4), threads_for(high.size, 16)
    if check:
        launch("bitpack", "find_disorder", *fours, indices, count, np.int64(n), refused)
    if low_bits:
        words = threads_for(low.size + 3, 4)
        launch("bitpack", "pack_bits", *words, indices, count, width, low, refused)
    launch("bitpack", "clear_bytes", *bytes_, high, np.int64(high.size), refused)
    given = indices, count, width, high, np.int64(8 * high.size), refused
    launch("elias_fano", "set_highs", *threads_for(indices.size, 1), *given)
    return not (check and device().read(refused))


def join(positions: U32, lows: U32, low_bits: int) -> None:
    """Turn the positions of the bits into the indices."""
    arguments = positions, lows, np.int32(low_bits), np.int64(positions.size)
    launch("elias_fano", "join", *threads_for(positions.size, 4), *arguments)
