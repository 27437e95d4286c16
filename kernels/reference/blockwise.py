"""Block-wise quantisation in NumPy; see :mod:`compressa.kernels.blockwise`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._arrays import F32, I64, U8, U32, Gradient
from ..blockwise import Form
from ..philox import FRACTION_BITS, Noise
from ._feedback import combine, effective, remainder, widened
from ._rounding import put
from ._tree import tree_sum
from .philox import random_fractions

_SMALL = np.float32(2.0**-100)
_SMALLEST = np.float32(2.0**-149)
_LARGEST = float(np.finfo(np.float32).max)
_LIFT = np.float32(2.0**64)
_ONE = np.float32(1)
_STEPS = np.float32(2**FRACTION_BITS)


class _Grid(NamedTuple):
    """A block's unit and offset, and what brings p to them without overflow or underflow."""

    unit: np.float32
    offset: np.float32
    lift: np.float32
    factor: np.float32


def _extremes(p: F32) -> tuple[np.float32, np.float32]:
    """The least and the greatest; -0 lies below 0."""
    bits = p.view(np.int32)
    order = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    return p[order.argmin()], p[order.argmax()]


def _unit(p: F32, largest: np.float32, form: Form) -> np.float32:
    if form.statistic == "max":
        return largest / np.float32(form.top)
    squares = tree_sum(p.astype(np.float64) ** 2)
    length = float(np.sqrt(squares))
    if form.statistic == "clipped":
        length = min(float(largest), form.clip * float(np.sqrt(squares / p.size)))
    return np.float32(min(length / form.top, _LARGEST))


def _grid(p: F32, form: Form) -> _Grid:
    low, high = _extremes(p)
    largest = np.abs(p).max()
    if form.statistic == "range":
        grid = _Grid((high - low) / np.float32(form.top), low, _ONE, _ONE)
        flat = bool(low == high)
    else:
        grid = _Grid(_unit(p, largest, form), np.float32(0), _ONE, _ONE)
        flat = bool(largest == 0)
    if not (np.isfinite(largest) and np.isfinite(grid.unit)):
        return _Grid(np.float32(np.nan), np.float32(np.nan), _ONE, _ONE)
    if flat:
        return grid._replace(unit=np.float32(0))
    if grid.unit < _SMALL:
        grid = grid._replace(unit=max(grid.unit, _SMALLEST), lift=_LIFT)
    return grid._replace(factor=_ONE / (grid.unit * grid.lift))


def _integers(p: F32, grid: _Grid, noise: U32 | None, form: Form) -> I64:
    if not grid.unit > 0:
        return np.zeros(p.size, np.int64)
    t = (p * grid.lift - grid.offset * grid.lift) * grid.factor
    if noise is None:
        q = np.rint(t).astype(np.int64)
    else:
        limited = np.clip(t, np.float32(form.bottom), np.float32(form.top))
        q = (np.trunc(limited * _STEPS).astype(np.int64) + noise) >> FRACTION_BITS
    clipped: I64 = np.clip(q, form.bottom, form.top)
    return clipped


def _pack(q: I64, form: Form) -> U8:
    each = 8 // form.bits
    width = -(-q.size // each)
    planes = np.full(each * width, form.zero, np.int64)
    planes[: q.size] += q
    shifts = form.bits * np.arange(each)[:, None]
    packed: U8 = (planes.reshape(each, width) << shifts).sum(axis=0).astype(np.uint8)
    return packed


def _unpack(codes: U8, size: int, form: Form) -> F32:
    if form.bits == 8 and form.statistic != "range":
        return codes.view(np.int8).astype(np.float32)
    shifts = form.bits * np.arange(8 // form.bits)[:, None]
    planes = (codes.astype(np.int64) >> shifts) & (2**form.bits - 1)
    q: F32 = (planes.ravel()[:size] - form.zero).astype(np.float32)
    return q


def _decode(q: F32, unit: np.float32, offset: np.float32 | None) -> F32:
    return q * unit if offset is None else q * unit + offset


def quantize_blockwise(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    noise: Noise | None = None,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.blockwise.quantize_blockwise`."""
    fractions = np.zeros(x.size, np.uint32)
    if noise is not None:
        random_fractions(fractions, noise)
    for b in range(scales.size):
        elements = slice(b * form.block, (b + 1) * form.block)
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, scale)
        grid = _grid(p, form)
        q = _integers(p, grid, None if noise is None else fractions[elements], form)
        scales[b] = grid.unit
        if offsets is not None:
            offsets[b] = grid.offset
        codes[b * form.block * form.bits // 8 :][: form.code_bytes(p.size)] = _pack(q, form)
        if left is not None and not np.isnan(grid.unit):
            offset = None if offsets is None else grid.offset
            left[:] = remainder(p, _decode(q.astype(np.float32), grid.unit, offset), scale)


def dequantize_blockwise(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """See :func:`compressa.kernels.blockwise.dequantize_blockwise`."""
    for b in range(scales.size):
        part = out[b * form.block : (b + 1) * form.block]
        packed = codes[b * form.block * form.bits // 8 :][: form.code_bytes(part.size)]
        q = _unpack(packed, part.size, form)
        combine(part, _decode(q, scales[b], None if offsets is None else offsets[b]), weight, add)


def sum_blockwise(
    codes: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    form: Form,
    offsets: Sequence[F32] | None = None,
    weight: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.blockwise.sum_blockwise`."""
    total = np.zeros(out.size, np.float32)
    for i, packed in enumerate(codes):
        some = None if offsets is None else offsets[i]
        dequantize_blockwise(
            packed, scales[i], total, form=form, offsets=some, weight=weight, add=True
        )
    put(total, out)
