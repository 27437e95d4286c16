"""Cosine transforms of chunks in NumPy; see :mod:`compressa.kernels.dct`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .._arrays import F32, F64, U8, Gradient
from ..dct import ChunkForm, basis
from ._feedback import combine, effective, remainder, widened

Places = npt.NDArray[np.intp]


def _chunks(n: int, form: ChunkForm) -> Iterator[tuple[slice, slice, slice]]:
    """Elements, values and bytes of places of each chunk."""
    for c, low in enumerate(range(0, n, form.chunk)):
        yield (
            slice(low, low + form.chunk),
            slice(c * form.kept, (c + 1) * form.kept),
            slice(c * form.place_bytes, (c + 1) * form.place_bytes),
        )


def _sum_in_order(factors: F32, rows: F64) -> F32:
    total = np.zeros(rows.shape[1])
    for factor, row in zip(factors.astype(np.float64), rows, strict=True):
        total += factor * row
    return total.astype(np.float32)


def _pack(places: Places, form: ChunkForm) -> U8:
    if not form.width:
        return np.packbits(np.isin(np.arange(form.chunk), places), bitorder="little")
    bits = places[:, None] >> np.arange(form.width) & 1
    return np.packbits(bits.ravel().astype(np.bool_), bitorder="little")


def _unpack(packed: U8, form: ChunkForm) -> Places:
    bits = np.unpackbits(packed, bitorder="little")
    if not form.width:
        return np.flatnonzero(bits)
    rows = bits[: form.kept * form.width].reshape(form.kept, form.width)
    return rows.astype(np.intp) @ (1 << np.arange(form.width))


def _decode(values: F32, places: Places, size: int, form: ChunkForm) -> F32:
    return _sum_in_order(values, basis(form.chunk)[0][places])[:size]


def keep_coefficients(
    x: Gradient,
    values: F32,
    places: U8,
    *,
    form: ChunkForm,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.dct.keep_coefficients`."""
    for elements, chosen, packed in _chunks(x.size, form):
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, scale)
        coefficients = _sum_in_order(p, basis(form.chunk)[1][: p.size])
        order = np.argsort(-np.abs(coefficients), kind="stable")
        kept = np.sort(order[: form.kept])
        sent = coefficients[kept]
        if not np.isfinite(coefficients).all():
            kept, sent = np.arange(form.kept), np.full(form.kept, np.nan, np.float32)
        values[chosen], places[packed] = sent, _pack(kept, form)
        if left is not None and np.isfinite(p).all():
            error = remainder(p, _decode(sent, kept, p.size, form), scale)
            whole = p * (np.float32(1) / np.float32(scale))
            kept_whole = np.where(np.isfinite(whole), whole, left)
            left[:] = np.where(np.isfinite(error), error, kept_whole)


def are_places(places: U8, *, form: ChunkForm) -> bool:
    """See :func:`compressa.kernels.dct.are_places`."""
    for packed in places.reshape(-1, form.place_bytes):
        found = _unpack(packed, form)
        increasing = found.size == form.kept and bool((np.diff(found) > 0).all())
        if not increasing or not np.array_equal(_pack(found, form), packed):
            return False
    return True


def add_coefficients(
    values: F32,
    places: U8,
    out: F32,
    *,
    form: ChunkForm,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """See :func:`compressa.kernels.dct.add_coefficients`."""
    for elements, chosen, packed in _chunks(out.size, form):
        part = out[elements]
        decoded = _decode(values[chosen], _unpack(places[packed], form), part.size, form)
        combine(part, decoded, weight, add)
