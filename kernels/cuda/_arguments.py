"""Arguments that many kernels share, as their parameters take them.

A number of NumPy's takes 0.2 microseconds to make, and a launch has up to twenty. So those that
come back, in every step or for every unit, are kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .._arrays import F32, Gradient
from ..philox import Noise

Arguments = tuple[Any, ...]

_KINDS = {
    np.dtype(np.float32): np.int32(0),
    np.dtype(np.float16): np.int32(1),
    np.dtype(np.uint16): np.int32(2),
}
_WORD = 0xFFFFFFFF
_NO_NOISE = (*[np.uint32(0)] * 4, np.int64(-1))
_KEPT = 1 << 12  # a model has fewer parameters, and units of fewer sizes


def values(x: Gradient) -> Arguments:
    """``const void* x, int kind``: a vector of float32, float16, or bfloat16 as uint16."""
    return x, _KINDS[x.dtype]


@lru_cache(_KEPT)
def i64(number: int) -> np.int64:
    """``i64``: a number of elements, or an index of one."""
    return np.int64(number)


@lru_cache
def i32(number: int) -> np.int32:
    """``i32``: a number of the layout."""
    return np.int32(number)


def feedback(residual: F32 | None, loss_scale: float) -> Arguments:
    """``float* residual, float loss_scale, float back``."""
    return residual, *_factors(loss_scale)


def random(noise: Noise | None) -> Arguments:
    """``u32 seed, u32 stream, u32 step, u32 parameter, i64 start``; start is -1 without noise."""
    if noise is None:
        return _NO_NOISE
    return *random_of_step(noise), _word(noise.parameter), i64(noise.start)


def random_of_step(noise: Noise | None) -> Arguments:
    """``u32 seed, u32 stream, u32 step``: what all vectors of a step share."""
    if noise is None:
        return _NO_NOISE[:3]
    return _word(noise.seed), _word(noise.stream), _word(noise.step)


@lru_cache
def _factors(loss_scale: float) -> tuple[np.float32, np.float32]:
    factor = np.float32(loss_scale)
    return factor, np.float32(1) / factor


@lru_cache(_KEPT)
def _word(number: int) -> np.uint32:
    return np.uint32(number & _WORD)
