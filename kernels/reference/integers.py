"""Integers of a shared unit in NumPy; see :mod:`compressa.kernels.integers`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ..integers import Integers
from ..philox import FRACTION_BITS, Noise
from .philox import random_fractions


def round_to_integers(x: F32, factor: float, most: int, out: Integers, noise: Noise) -> None:
    """See :func:`compressa.kernels.integers.round_to_integers`."""
    fractions = np.empty(x.size, np.uint32)
    random_fractions(fractions, noise)
    t = x.astype(np.float64) * factor
    t = np.where(t < most, t, most)
    t = np.where(t > -most, t, -most)
    out[:] = (np.trunc(t * 2**FRACTION_BITS).astype(np.int64) + fractions) >> FRACTION_BITS


def scale_integers(q: Integers, unit: float, out: F32) -> None:
    """See :func:`compressa.kernels.integers.scale_integers`."""
    out[:] = q.astype(np.float64) * unit
