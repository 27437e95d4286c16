"""Natural compression in NumPy; see :mod:`compressa.kernels.natural`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, U8, Gradient
from ..natural import GROUP
from ..philox import FRACTION_BITS, Noise
from ._feedback import combine, effective, remainder, widened
from ._rounding import put
from ._signs import pack_planes, unpack_planes
from .philox import random_fractions

_NORMAL = np.uint32(1 << 23)


def _decode(exponents: U8, negative: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> F32:
    sign = np.where(negative, np.uint32(1 << 31), np.uint32(0))
    return ((exponents.astype(np.uint32) << np.uint32(23)) | sign).view(np.float32)


def natural_quantize(
    x: Gradient,
    exponents: U8,
    signs: U8,
    *,
    noise: Noise,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.natural.natural_quantize`."""
    p = effective(widened(x), residual, scale)
    fractions = np.empty(p.size, np.uint32)
    random_fractions(fractions, noise)
    magnitude = p.view(np.uint32) & np.uint32(0x7FFFFFFF)
    rounded = (magnitude + fractions) >> np.uint32(FRACTION_BITS)
    rounded = np.where(magnitude < _NORMAL, np.uint32(0), rounded)
    finite = np.isfinite(p)
    exponents[:] = np.where(finite, np.minimum(rounded, 254), 255)
    negative = np.signbit(p + np.float32(0))
    for low in range(0, p.size, GROUP):
        signs[low // 8 : (low + GROUP) // 8] = pack_planes(negative[low : low + GROUP])
    if residual is not None:
        left = remainder(p, _decode(exponents, negative), scale)
        residual[:] = np.where(finite, left, residual)


def natural_dequantize(
    exponents: U8, signs: U8, out: F32, *, weight: float = 1.0, add: bool = False
) -> None:
    """See :func:`compressa.kernels.natural.natural_dequantize`."""
    for low in range(0, out.size, GROUP):
        part = out[low : low + GROUP]
        negative = unpack_planes(signs[low // 8 : (low + GROUP) // 8], part.size)
        combine(part, _decode(exponents[low : low + GROUP], negative), weight, add)


def sum_natural(
    exponents: Sequence[U8], signs: Sequence[U8], out: Gradient, *, weight: float = 1.0
) -> None:
    """See :func:`compressa.kernels.natural.sum_natural`."""
    total = np.zeros(out.size, np.float32)
    for codes, packed in zip(exponents, signs, strict=True):
        natural_dequantize(codes, packed, total, weight=weight, add=True)
    put(total, out)
