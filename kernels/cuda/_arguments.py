"""Arguments that many kernels share, as their parameters take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arrays import F32, Gradient
from ..philox import Noise

Arguments = tuple[Any, ...]

_KINDS = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2}
_WORD = 0xFFFFFFFF


def values(x: Gradient) -> Arguments:
    """``const void* x, int kind``: a vector of float32, float16, or bfloat16 as uint16."""
    return x, np.int32(_KINDS[x.dtype])


def feedback(residual: F32 | None, scale: float) -> Arguments:
    """``float* residual, float scale, float back``."""
    factor = np.float32(scale)
    return residual, factor, np.float32(1) / factor


def random(noise: Noise | None) -> Arguments:
    """``u32 seed, u32 stream, u32 step, u32 parameter, i64 start``; start is -1 without noise."""
    if noise is None:
        return (*[np.uint32(0)] * 4, np.int64(-1))
    words = (noise.seed, noise.stream, noise.step, noise.parameter)
    return (*(np.uint32(word & _WORD) for word in words), np.int64(noise.start))
