"""Whole vectors as integers of one shared scale, so that integers can be summed over ranks.

Unlike :mod:`blockwise`, the scale is not worked out here: all ranks have agreed on it beforehand,
so the sum of their integers decodes to the sum of what each decodes to, without any further loss
(IntSGD, Mishchenko et al., ICLR 2022; TernGrad with a shared scale, Wen et al., NeurIPS 2017).
Whoever calls leaves room: P ranks with integers of at most ``most`` need P * most in the dtype.

Exact arithmetic, in float64, so that scales of any size and integers of 32 bits lose nothing:

* t = x * factor, limited to -most..most; NaN counts as ``most``.
* k = trunc(t * 2**23), q = (k + noise) >> 23 with the 23 random bits of the element
  (`philox.random_fractions`): up with the probability of the fraction, unbiased to 2**-23.
* decode = float32(q * scale).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import F32, check_array
from ._backends import backend
from .philox import FRACTION_BITS, Noise, check_noise, random_fractions

DTYPES = (np.int8, np.int16, np.int32)
Integers = npt.NDArray[Any]


def round_to_integers(x: F32, factor: float, most: int, out: Integers, noise: Noise) -> None:
    """Round ``x * factor`` stochastically.

    Example:
        >>> import numpy as np
        >>> out = np.empty(3, np.int8)
        >>> x = np.array([0.5, -2, 9], np.float32)
        >>> round_to_integers(x, 2.0, 7, out, Noise(0, 0, 0, 0))
        >>> out.tolist()
        [1, -4, 7]

    Args:
        x: float32[n].
        factor: Integers per unit of ``x``; not negative, finite.
        most: The largest integer, at least 1; it must fit ``out``.
        out: int8[n], int16[n] or int32[n], overwritten.
        noise: Where the random numbers begin.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``factor``, ``most`` or ``noise`` is wrong.
    """
    check_array("x", x, np.float32)
    _check_integers(out, x.shape, writable=True)
    if not 0 <= factor < float("inf"):
        raise ValueError(f"factor must be finite and not negative, not {factor}")
    if not 1 <= most <= np.iinfo(out.dtype).max:
        raise ValueError(f"most must lie between 1 and {np.iinfo(out.dtype).max}, not {most}")
    check_noise(noise, x.size)
    if kernel := backend("integers", x, out):
        kernel.round_to_integers(x, factor, most, out, noise)
        return
    fractions = np.empty(x.size, np.uint32)
    random_fractions(fractions, noise)
    t = x.astype(np.float64) * factor
    t = np.where(t < most, t, most)
    t = np.where(t > -most, t, -most)
    out[:] = (np.trunc(t * 2**FRACTION_BITS).astype(np.int64) + fractions) >> FRACTION_BITS


def scale_integers(q: Integers, scale: float, out: F32) -> None:
    """Write ``q * scale``.

    Args:
        q: int8[n], int16[n] or int32[n].
        scale: What 1 stands for.
        out: float32[n], overwritten.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    _check_integers(q, out.shape)
    if kernel := backend("integers", q, out):
        kernel.scale_integers(q, scale, out)
        return
    out[:] = q.astype(np.float64) * scale


def _check_integers(q: Integers, shape: tuple[int, ...], *, writable: bool = False) -> None:
    if q.dtype not in DTYPES:
        raise TypeError(f"integers must be int8, int16 or int32, not {q.dtype}")
    check_array("integers", q, q.dtype, shape, writable=writable)
