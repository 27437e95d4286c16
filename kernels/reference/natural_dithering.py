"""Natural dithering in NumPy; see :mod:`compressa.kernels.natural_dithering`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, I64, U8, U32, Gradient
from ..natural_dithering import Dithering
from ..philox import FRACTION_BITS, Noise
from ._feedback import combine, effective, remainder, widened
from ._signs import Bits, pack_planes, unpack_planes
from ._tree import tree_sum
from .philox import random_fractions

_LARGEST = float(np.finfo(np.float32).max)


def _norm(p: F32, form: Dithering) -> np.float32:
    if not np.isfinite(p).all():
        return np.float32(np.nan)
    if form.norm == "max":
        return np.float32(np.abs(p).max())
    return np.float32(min(np.sqrt(tree_sum(p.astype(np.float64) ** 2)), _LARGEST))


def _levels(p: F32, norm: np.float32, fractions: U32, form: Dithering) -> I64:
    if not norm > 0:
        return np.zeros(p.size, np.int64)
    t = np.abs(p) / norm
    raised = (t.view(np.uint32) + fractions) >> FRACTION_BITS
    smallest = np.float32(2.0 ** (form.levels - 1))
    most = np.float32(1 - 2.0**-FRACTION_BITS)
    fixed = np.rint(np.minimum(t * smallest, most) * np.float32(2**FRACTION_BITS))
    level: I64 = np.where(
        t * smallest < np.float32(1),
        (fixed.astype(np.int64) + fractions) >> FRACTION_BITS,
        raised.astype(np.int64) - 127 + form.levels,
    )
    return level


def _decode(levels: I64, negative: Bits, norm: np.float32, form: Dithering) -> F32:
    powers = np.where(levels > 0, np.exp2(levels - form.levels), 0.0).astype(np.float32)
    return np.where(negative, -norm, norm) * powers


def dither(
    x: Gradient,
    codes: U8,
    norms: F32,
    *,
    form: Dithering,
    noise: Noise,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.natural_dithering.dither`."""
    fractions = np.empty(x.size, np.uint32)
    random_fractions(fractions, noise)
    for b in range(norms.size):
        elements = slice(b * form.block, (b + 1) * form.block)
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, scale)
        norms[b] = _norm(p, form)
        levels = _levels(p, norms[b], fractions[elements], form)
        negative = (p < 0) & (levels > 0)
        values = levels + (negative.astype(np.int64) << (form.bits - 1))
        planes = [pack_planes((values >> k & 1).astype(np.bool_)) for k in range(form.bits)]
        start = form.code_bytes(elements.start)
        codes[start : start + form.code_bytes(p.size)] = np.concatenate(planes)
        if left is not None and not np.isnan(norms[b]):
            left[:] = remainder(p, _decode(levels, negative, norms[b], form), scale)


def undither(
    codes: U8, norms: F32, out: F32, *, form: Dithering, weight: float = 1.0, add: bool = False
) -> None:
    """See :func:`compressa.kernels.natural_dithering.undither`."""
    for b in range(norms.size):
        part = out[b * form.block : (b + 1) * form.block]
        start = form.code_bytes(b * form.block)
        planes = codes[start : start + form.code_bytes(part.size)].reshape(form.bits, -1)
        bits = [unpack_planes(plane, part.size).astype(np.int64) for plane in planes]
        levels = sum((bit << k for k, bit in enumerate(bits[:-1])), np.zeros(part.size, np.int64))
        combine(part, _decode(levels, bits[-1].astype(np.bool_), norms[b], form), weight, add)
