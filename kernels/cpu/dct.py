"""Cosine transforms of chunks for NumPy arrays; see :mod:`compressa.kernels.dct`.

A sum in a written order does not vectorise, many of them side by side do: a transform adds one
row of the matrix after the other, and its 2 N^2 operations stay in the first-level cache.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, U8, U32, Gradient
from ..dct import ChunkForm, basis
from ..threads import over_slices
from ._feedback import Factors, Values, factors_of, fill_largest, magnitude_bits, place
from ._jit import jit, lean
from ._values import bits_of
from ._view import view

Sizes = tuple[int, int, int, int]
"""Elements and kept coefficients of a chunk, bits of a place (0: a bitmap), bytes of places."""
Rooms = tuple[F32, F32, U32, U8, F64]

_INFINITY = np.uint32(0x7F800000)
_NAN = np.float32(np.nan)
_ONE = np.uint32(1)


@lean
def _add_row(factor: float, row: F64, sums: F64) -> None:
    for j in range(sums.size):
        sums[j] += factor * row[j]


@lean
def _transform(p: F32, rows: F64, sums: F64) -> None:
    """All coefficients: ``rows`` is the transposed matrix. Padding would add nothing."""
    sums[:] = 0.0
    for i in range(p.size):
        _add_row(float(p[i]), view(rows, i * sums.size, (i + 1) * sums.size), sums)


@lean
def _transform_back(values: F32, chosen: U8, rows: F64, sums: F64) -> None:
    sums[:] = 0.0
    for i in range(values.size):
        first = int(chosen[i]) * sums.size
        _add_row(float(values[i]), view(rows, first, first + sums.size), sums)


@lean
def _round(sums: F64, coefficients: F32, keys: U32) -> np.uint32:
    """Round to float32, and return the largest key: the bits of a magnitude order as it does."""
    largest = np.uint32(0)
    for j in range(sums.size):
        coefficients[j] = np.float32(sums[j])
        keys[j] = magnitude_bits(coefficients[j])
        largest = max(largest, keys[j])
    return largest


@lean
def _count(keys: U32, least: np.uint32) -> int:
    """How many keys are at least so large."""
    count = np.uint32(0)
    for j in range(keys.size):
        count += np.uint32(keys[j] >= least)
    return int(count)


@lean
def _kth_largest(keys: U32, k: int) -> np.uint32:
    """The largest number that k keys reach, bit by bit."""
    found = np.uint32(0)
    for bit in range(30, -1, -1):
        more = np.uint32(found | np.uint32(_ONE << np.uint32(bit)))
        if _count(keys, more) >= k:
            found = more
    return found


@lean
def _choose(coefficients: F32, keys: U32, values: F32, chosen: U8) -> None:
    """The largest ones in the order of their places; of equal ones the first."""
    least = _kth_largest(keys, values.size)
    spare = values.size - _count(keys, np.uint32(least + _ONE))
    at = 0
    for j in range(keys.size):
        equal = keys[j] == least and spare > 0
        spare -= int(equal)
        if keys[j] > least or equal:
            values[at], chosen[at] = coefficients[j], np.uint8(j)
            at += 1


@lean
def _mark_overflow(values: F32, chosen: U8) -> None:
    for i in range(values.size):
        values[i], chosen[i] = _NAN, np.uint8(i)


@lean
def _pack(chosen: U8, width: int, packed: U8) -> None:
    packed[:] = np.uint8(0)
    for i in range(chosen.size):
        first = i * width if width else int(chosen[i])
        word = np.uint32(chosen[i] if width else 1) << np.uint32(first % 8)
        packed[first // 8] |= np.uint8(word & np.uint32(255))
        if word > np.uint32(255):
            packed[first // 8 + 1] |= np.uint8(word >> np.uint32(8))


@lean
def _unpack_stream(packed: U8, width: int, chosen: U8) -> bool:
    """Read places; return whether they increase and unused bits are 0."""
    right, before = True, -1
    for i in range(chosen.size):
        first = i * width
        word = np.uint32(packed[first // 8])
        if first // 8 + 1 < packed.size:
            word |= np.uint32(packed[first // 8 + 1]) << np.uint32(8)
        found = int(word >> np.uint32(first % 8)) & ((1 << width) - 1)
        right &= found > before
        chosen[i], before = np.uint8(found), found
    used = (chosen.size * width - 1) % 8 + 1
    return right and int(packed[packed.size - 1]) >> used == 0


@lean
def _unpack_bitmap(packed: U8, chosen: U8) -> bool:
    """Read places; return whether there are as many as there should be."""
    at = 0
    for e in range(8 * packed.size):
        if (packed[e // 8] >> np.uint8(e % 8)) & np.uint8(1):
            if at < chosen.size:
                chosen[at] = np.uint8(e)
            at += 1
    return at == chosen.size


@lean
def _unpack(packed: U8, width: int, chosen: U8) -> bool:
    if width:
        return _unpack_stream(packed, width, chosen)
    return _unpack_bitmap(packed, chosen)


@lean
def _keep(p: F32, sums: F64, residual: F32, back: np.float32) -> None:
    """The error of finite elements; where there is none to speak of, the element itself."""
    for i in range(p.size):
        error = (p[i] - np.float32(sums[i])) * back
        if magnitude_bits(error) >= _INFINITY:
            error = p[i] * back
        if magnitude_bits(error) < _INFINITY:
            residual[i] = error


@lean
def _encode(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    values: F32,
    places: U8,
    sizes: Sizes,
    matrices: tuple[F64, F64],
    rooms: Rooms,
) -> None:
    chunk, kept, width, place_bytes = sizes
    room, coefficients, keys, chosen, sums = rooms
    for c in range(values.size // kept):
        low, high = c * chunk, min((c + 1) * chunk, x.size)
        now, left = view(x, low, high), view(residual, low, high)
        p = view(place(now, left, room), 0, now.size)
        finite = np.isfinite(fill_largest(now, left, factors[0], p, None, None, 0))
        _transform(p, matrices[1], sums)
        sent = view(values, c * kept, (c + 1) * kept)
        if _round(sums, coefficients, keys) < _INFINITY:
            _choose(coefficients, keys, sent, chosen)
        else:
            _mark_overflow(sent, chosen)
        _pack(chosen, width, view(places, c * place_bytes, (c + 1) * place_bytes))
        if residual is not None and finite:
            _transform_back(sent, chosen, matrices[0], sums)
            _keep(p, sums, left, factors[1])


@jit
def _check(places: U8, kept: int, width: int, place_bytes: int) -> bool:
    chosen = np.empty(kept, np.uint8)
    for low in range(0, places.size, place_bytes):
        if not _unpack(view(places, low, low + place_bytes), width, chosen):
            return False
    return True


@lean
def _deliver(sums: F64, weight: np.float32, add: bool, out: F32) -> None:
    if add:
        for i in range(out.size):
            out[i] += weight * np.float32(sums[i])
    else:
        for i in range(out.size):
            out[i] = weight * np.float32(sums[i])


@jit
def _decode(
    values: F32,
    places: U8,
    out: F32,
    weight: np.float32,
    add: bool,
    sizes: Sizes,
    table: F64,
) -> None:
    chunk, kept, width, place_bytes = sizes
    sums, chosen = np.empty(chunk), np.empty(kept, np.uint8)
    for c in range(values.size // kept):
        _unpack(view(places, c * place_bytes, (c + 1) * place_bytes), width, chosen)
        _transform_back(view(values, c * kept, (c + 1) * kept), chosen, table, sums)
        _deliver(sums, weight, add, view(out, c * chunk, min((c + 1) * chunk, out.size)))


def _sizes(form: ChunkForm) -> Sizes:
    return form.chunk, form.kept, form.width, form.place_bytes


def _rooms(form: ChunkForm) -> Rooms:
    """Memory for p, coefficients, their keys, places and sums of one chunk."""
    chunk = form.chunk
    floats, keys = np.empty((2, chunk), np.float32), np.empty(chunk, np.uint32)
    return floats[0], floats[1], keys, np.empty(form.kept, np.uint8), np.empty(chunk)


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
    elements, factors = bits_of(x), factors_of(scale)
    table, turned = (matrix.reshape(-1) for matrix in basis(form.chunk))

    def work(low: int, high: int) -> None:
        first, last = low // form.chunk, -(-high // form.chunk)
        _encode(
            elements[low:high],
            None if residual is None else residual[low:high],
            factors,
            values[first * form.kept : last * form.kept],
            places[first * form.place_bytes : last * form.place_bytes],
            _sizes(form),
            (table, turned),
            _rooms(form),
        )

    over_slices(x.size, form.chunk, work)


def are_places(places: U8, *, form: ChunkForm) -> bool:
    """See :func:`compressa.kernels.dct.are_places`."""
    return bool(_check(places, form.kept, form.width, form.place_bytes))


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
    factor, table = np.float32(weight), basis(form.chunk)[0].reshape(-1)

    def work(low: int, high: int) -> None:
        first, last = low // form.chunk, -(-high // form.chunk)
        some = values[first * form.kept : last * form.kept]
        packed = places[first * form.place_bytes : last * form.place_bytes]
        _decode(some, packed, out[low:high], factor, add, _sizes(form), table)

    over_slices(out.size, form.chunk, work)
