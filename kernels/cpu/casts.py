"""Casts for NumPy arrays; see :mod:`compressa.kernels.casts`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, I64, Gradient
from ..casts import Half
from ..threads import over_slices
from ._feedback import effective, factors_of, magnitude_bits
from ._jit import inlined, lean
from ._payloads import addresses, at, finish, first_of_sums, room_for_sums
from ._prefetch import fetch
from ._values import INFINITY, TOO_LARGE, Values, bits_of, load, store
from ._view import view

_ROW = 192  # elements between two rounds of hints to memory
_AHEAD = 768  # both found by trying, on a Sapphire Rapids core
_PIECE = 1024  # elements of a sum that are made at a time, in the first-level cache


@inlined
def _narrow_row(
    x: F32,
    out: Values,
    residual: F32 | None,
    loss_scale: np.float32,
    back: np.float32,
    too_large: np.uint32,
) -> None:
    for i in range(x.size):
        p = effective(x, residual, loss_scale, i)
        store(out, i, p)
        if residual is not None:
            sent = load(out, i)
            error, whole = np.float32((p - sent) * back), np.float32(p * back)
            kept = whole if magnitude_bits(whole) < too_large else residual[i]
            residual[i] = error if magnitude_bits(sent) < INFINITY else kept


@lean
def _narrow(
    x: F32,
    out: Values,
    residual: F32 | None,
    loss_scale: np.float32,
    back: np.float32,
    too_large: np.uint32,
) -> None:
    for low in range(0, x.size, _ROW):
        high = min(low + _ROW, x.size)
        fetch(x, low + _AHEAD, high + _AHEAD)
        fetch(residual, low + _AHEAD, high + _AHEAD)
        fetch(out, low + _AHEAD, high + _AHEAD)
        kept = view(residual, low, high)
        _narrow_row(view(x, low, high), view(out, low, high), kept, loss_scale, back, too_large)


@inlined
def _widen_row(x: Values, out: F32, weight: np.float32, add: bool) -> None:
    if add:
        for i in range(out.size):
            out[i] += weight * load(x, i)
    else:
        for i in range(out.size):
            out[i] = weight * load(x, i)


@lean
def _widen(x: Values, out: F32, weight: np.float32, add: bool) -> None:
    for low in range(0, out.size, _ROW):
        high = min(low + _ROW, out.size)
        fetch(x, low + _AHEAD, high + _AHEAD)
        fetch(out, low + _AHEAD, high + _AHEAD)
        _widen_row(view(x, low, high), view(out, low, high), weight, add)


@lean
def _sum(
    halves: I64,
    elems: tuple[int, int],
    sums: F32,
    rounded: Values | None,
    weight: np.float32,
    like: Values,
) -> None:
    """Elements low to high; arrays are given by the addresses where they begin."""
    for low in range(elems[0], elems[1], _PIECE):
        high = min(low + _PIECE, elems[1])
        at_sums = first_of_sums(rounded, low)
        part = view(sums, at_sums, at_sums + high - low)
        part[:] = np.float32(0)
        for i in range(halves.size):
            x = at(like, halves[i] + 2 * low, high - low)
            fetch(x, _AHEAD, _AHEAD + x.size)
            _widen_row(x, part, weight, True)
        finish(part, rounded, low)


def narrow(x: F32, out: Half, *, residual: F32 | None = None, loss_scale: float = 1.0) -> None:
    bits, (factor, back), too_large = bits_of(out), factors_of(loss_scale), TOO_LARGE[out.dtype]

    def work(low: int, high: int) -> None:
        kept = None if residual is None else residual[low:high]
        _narrow(x[low:high], bits[low:high], kept, factor, back, too_large)

    over_slices(x.size, _ROW, work)


def widen(x: Half, out: F32, *, weight: float = 1.0, add: bool = False) -> None:
    bits, factor = bits_of(x), np.float32(weight)

    def work(low: int, high: int) -> None:
        _widen(bits[low:high], out[low:high], factor, add)

    over_slices(out.size, _ROW, work)


def sum_casts(x: Sequence[Half], out: Gradient, *, weight: float = 1.0) -> None:
    factor, sources = np.float32(weight), addresses(x)
    like = bits_of(np.empty(0, x[0].dtype if x else np.uint16))

    def work(low: int, high: int) -> None:
        sums, rounded = room_for_sums(out, _PIECE)
        _sum(sources, (low, high), sums, rounded, factor, like)

    over_slices(out.size, _PIECE, work)
