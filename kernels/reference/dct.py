"""Cosine transforms of tiles in NumPy; see :mod:`compressa.kernels.dct`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .._arrays import F32, F64, U8, Gradient
from ..dct import LARGEST_WHOLE, ChunkForm, basis
from ._feedback import combine, effective, remainder, widened

Places = npt.NDArray[np.intp]


def _tiles(n: int, form: ChunkForm) -> Iterator[tuple[list[slice], slice, slice]]:
    """Elements of each row, values and bytes of places of each tile."""
    for t in range(form.tiles(n)):
        band, across = divmod(t, form.band_tiles)
        first, wide = across * form.chunk, min(form.chunk, form.row_elems - across * form.chunk)
        lows = range(band * form.band_elems + first, n, form.row_elems)[: form.height]
        yield (
            [slice(low, min(low + wide, n)) for low in lows],
            slice(t * form.kept, (t + 1) * form.kept),
            slice(t * form.place_bytes, (t + 1) * form.place_bytes),
        )


def _sum_in_order(factors: F32 | F64, rows: F32 | F64) -> F32:
    total = np.zeros(rows.shape[1])
    for factor, row in zip(factors.astype(np.float64), rows.astype(np.float64), strict=True):
        total += factor * row
    return total.astype(np.float32)


def _transform(p: list[F32], form: ChunkForm) -> F32:
    """All coefficients of a tile, given its rows as far as they go."""
    table, turned = basis(form.chunk)
    rows = np.zeros((form.height, form.chunk), np.float32)
    for i, row in enumerate(p):
        rows[i] = _sum_in_order(row, turned[: row.size])
    if form.height == 1:
        first: F32 = rows[0]
        return first
    return np.concatenate([_sum_in_order(line[: len(p)], rows[: len(p)]) for line in table])


def _pack(places: Places, form: ChunkForm) -> U8:
    if not form.width:
        return np.packbits(np.isin(np.arange(form.tile_elems), places), bitorder="little")
    bits = places[:, None] >> np.arange(form.width) & 1
    return np.packbits(bits.ravel().astype(np.bool_), bitorder="little")


def _unpack(packed: U8, form: ChunkForm) -> Places:
    bits = np.unpackbits(packed, bitorder="little")
    if not form.width:
        return np.flatnonzero(bits)
    rows = bits[: form.kept * form.width].reshape(form.kept, form.width)
    return rows.astype(np.intp) @ (1 << np.arange(form.width))


def _decode(values: F32, places: Places, form: ChunkForm) -> F32:
    """What a tile's kept coefficients decode to, as float32[height, chunk]."""
    table, turned = basis(form.chunk)
    found, columns = np.divmod(places, form.chunk)
    kept = np.unique(found)
    rows = [_sum_in_order(values[found == j], table[columns[found == j]]) for j in kept]
    if form.height == 1:
        return rows[0][None]
    return np.stack([_sum_in_order(line[kept], np.stack(rows)) for line in turned])


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
    for rows, chosen, packed in _tiles(x.size, form):
        left = [None if residual is None else residual[row] for row in rows]
        p = [effective(widened(x[row]), e, scale) for row, e in zip(rows, left, strict=True)]
        coefficients = _transform(p, form)
        order = np.argsort(-np.abs(coefficients), kind="stable")
        kept = np.sort(order[: form.kept])
        sent = coefficients[kept]
        if not np.isfinite(coefficients).all():
            kept, sent = np.arange(form.kept), np.full(form.kept, np.nan, np.float32)
        values[chosen], places[packed] = sent, _pack(kept, form)
        if residual is not None and all(np.isfinite(row).all() for row in p):
            for row, own, decoded in zip(rows, p, _decode(sent, kept, form), strict=False):
                residual[row] = _left_behind(own, decoded[: own.size], residual[row], scale)


def _left_behind(p: F32, decoded: F32, before: F32, scale: float) -> F32:
    """The error; the element where there is none and it can be sent later, or what was there."""
    error = remainder(p, decoded, scale)
    whole = p * (np.float32(1) / np.float32(scale))
    kept_whole = np.where(np.abs(whole) <= LARGEST_WHOLE, whole, before)
    return np.where(np.isfinite(error), error, kept_whole)


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
    for rows, chosen, packed in _tiles(out.size, form):
        decoded = _decode(values[chosen], _unpack(places[packed], form), form)
        for row, line in zip(rows, decoded, strict=False):
            combine(out[row], line[: row.stop - row.start], weight, add)
