"""Rounding to 16 bits, to nearest and ties to even."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, Gradient

_QUIET = np.uint32(0x7FC0)


def put(x: F32, out: Gradient) -> None:
    """Write ``x`` to ``out``, rounded to float16 or bfloat16 (as uint16) where it is that."""
    if out.dtype != np.uint16:
        out[:] = x.astype(out.dtype)
        return
    bits = x.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    out[:] = np.where(np.isnan(x), _QUIET, rounded)
