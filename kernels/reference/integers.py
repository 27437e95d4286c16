"""Integers of a shared unit in NumPy; see :mod:`compressa.kernels.integers`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ..integers import Integers
from ..philox import Noise
from .philox import random_halves


def round_to_integers(x: F32, factor: float, most: int, out: Integers, noise: Noise) -> None:
    """See :func:`compressa.kernels.integers.round_to_integers`."""
    halves = np.empty(x.size, np.uint16)
    random_halves(halves, noise)
    t = x.astype(np.float64) * factor
    t = np.where(t < most, t, most)
    t = np.where(t > -most, t, -most)
    out[:] = (np.floor(t * 32768 + 0.5).astype(np.int64) + halves) >> 15


def scale_integers(q: Integers, unit: float, out: F32) -> None:
    """See :func:`compressa.kernels.integers.scale_integers`."""
    out[:] = q.astype(np.float64) * unit
