"""Cosine transforms of tiles for NumPy arrays; see :mod:`compressa.kernels.dct`.

A sum in a written order does not vectorise, many of them side by side do: a transform adds one
row of the matrix after the other, and its 2 N^2 operations stay in the first-level cache.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, U8, U16, U32, Gradient
from ..dct import ChunkForm, Coefficients, basis, largest_whole
from ..threads import over_slices
from ._feedback import (
    Factors,
    Values,
    combine,
    factors_of,
    fill_largest,
    magnitude_bits,
    room_for_p,
)
from ._jit import jit, lean, lean_nested
from ._values import INFINITY, TOO_LARGE, bits_of, load, store
from ._view import view

Sizes = tuple[int, int, int, int, int, int]
"""Rows of a tile, elements of one, elements from one to the next; kept coefficients of a tile, bits
of a position (0: a bitmap), bytes of positions."""
Rooms = tuple[F32, F32, F32, F32, U32, U16, F64]
Limits = tuple[np.uint32, np.float32]
"""The bits of the smallest coefficient that no value holds; and of elements, the largest one whose
coefficients are values."""

_NAN = np.float32(np.nan)
_ONE = np.uint32(1)


@lean_nested
def _add_row(factor: float, row: F32 | F64, sums: F64) -> None:
    for j in range(sums.size):
        sums[j] += factor * row[j]


@lean_nested
def _transform(p: F32, rows: F64, sums: F64) -> None:
    """All coefficients: ``rows`` is the transposed matrix. Padding would add nothing."""
    sums[:] = 0.0
    for i in range(p.size):
        _add_row(float(p[i]), view(rows, i * sums.size, (i + 1) * sums.size), sums)


@lean_nested
def _transform_columns(lines: F32, rows: int, line: F64, sums: F64) -> None:
    """Add up the first rows of a tile, each times an element of a row of a matrix."""
    sums[:] = 0.0
    for i in range(rows):
        _add_row(line[i], view(lines, i * sums.size, (i + 1) * sums.size), sums)


@lean_nested
def _transform_row_back(values: F32, chosen: U16, first: int, table: F64, sums: F64) -> int:
    """Transform the row of coefficients back that begins with this one; return where it ends."""
    sums[:] = 0.0
    row, i = int(chosen[first]) // sums.size, first
    while i < values.size and int(chosen[i]) // sums.size == row:
        begin = int(chosen[i]) % sums.size * sums.size
        _add_row(float(values[i]), view(table, begin, begin + sums.size), sums)
        i += 1
    return i


@lean_nested
def _round(sums: F64, line: F32) -> None:
    for j in range(sums.size):
        line[j] = np.float32(sums[j])


@lean_nested
def _transform_back(
    values: F32, chosen: U16, height: int, table: F64, lines: F32, decoded: F32, sums: F64
) -> None:
    """What the kept coefficients of a tile decode to; ``lines`` is room for as much."""
    chunk, first, count = sums.size, 0, 0
    while first < values.size:
        row = chosen[first] // chunk
        first = _transform_row_back(values, chosen, first, table, sums)
        _round(sums, view(lines if height > 1 else decoded, count * chunk, (count + 1) * chunk))
        chosen[count] = row  # which has been read
        count += 1
    for i in range(height if height > 1 else 0):
        sums[:] = 0.0
        for at in range(count):
            line = view(lines, at * chunk, (at + 1) * chunk)
            _add_row(table[int(chosen[at]) * chunk + i], line, sums)
        _round(sums, view(decoded, i * chunk, (i + 1) * chunk))


@lean_nested
def _largest_key(coefficients: F32, keys: U32) -> np.uint32:
    """Return the largest key: the bits of a magnitude order as it does."""
    largest = np.uint32(0)
    for j in range(keys.size):
        keys[j] = magnitude_bits(coefficients[j])
        largest = max(largest, keys[j])
    return largest


@lean_nested
def _count(keys: U32, least: np.uint32) -> int:
    """How many keys are at least so large."""
    count = np.uint32(0)
    for j in range(keys.size):
        count += np.uint32(keys[j] >= least)
    return int(count)


@lean_nested
def _kth_largest(keys: U32, k: int) -> np.uint32:
    """The largest number that k keys reach, bit by bit."""
    found = np.uint32(0)
    for bit in range(30, -1, -1):
        more = np.uint32(found | np.uint32(_ONE << np.uint32(bit)))
        if _count(keys, more) >= k:
            found = more
    return found


@lean_nested
def _choose(coefficients: F32, keys: U32, values: F32, chosen: U16) -> None:
    """The largest ones in the order of their positions; of equal ones the first."""
    least = _kth_largest(keys, values.size)
    spare = values.size - _count(keys, np.uint32(least + _ONE))
    at = 0
    for j in range(keys.size):
        equal = keys[j] == least and spare > 0
        spare -= int(equal)
        if keys[j] > least or equal:
            values[at], chosen[at] = coefficients[j], np.uint16(j)
            at += 1


@lean_nested
def _send(chosen: F32, values: Values) -> None:
    """Write coefficients to the payload; they become what arrives."""
    for i in range(chosen.size):
        store(values, i, chosen[i])
        chosen[i] = load(values, i)


@lean_nested
def _mark_overflow(values: F32, chosen: U16) -> None:
    for i in range(values.size):
        values[i], chosen[i] = _NAN, np.uint16(i)


@lean_nested
def _pack(chosen: U16, width: int, packed: U8) -> None:
    packed[:] = np.uint8(0)
    for i in range(chosen.size):
        first = i * width if width else int(chosen[i])
        word = np.uint32(chosen[i] if width else 1) << np.uint32(first % 8)
        byte = first // 8
        while word:
            packed[byte] |= np.uint8(word & np.uint32(255))
            word >>= np.uint32(8)
            byte += 1


@lean_nested
def _unpack_stream(packed: U8, width: int, chosen: U16) -> bool:
    """Read positions; return whether they increase and unused bits are 0."""
    right, before = True, -1
    for i in range(chosen.size):
        first = i * width
        word = np.uint32(0)
        for byte in range(first // 8, (first + width + 7) // 8):
            word |= np.uint32(packed[byte]) << np.uint32(8 * (byte - first // 8))
        found = int(word >> np.uint32(first % 8)) & ((1 << width) - 1)
        right &= found > before
        chosen[i], before = np.uint16(found), found
    used = (chosen.size * width - 1) % 8 + 1
    return right and int(packed[packed.size - 1]) >> used == 0


@lean_nested
def _unpack_bitmap(packed: U8, chosen: U16) -> bool:
    """Read positions; return whether there are as many as there should be."""
    at = 0
    for e in range(8 * packed.size):
        if (packed[e // 8] >> np.uint8(e % 8)) & np.uint8(1):
            if at < chosen.size:
                chosen[at] = np.uint16(e)
            at += 1
    return at == chosen.size


@lean_nested
def _unpack(packed: U8, width: int, chosen: U16) -> bool:
    if width:
        return _unpack_stream(packed, width, chosen)
    return _unpack_bitmap(packed, chosen)


@lean_nested
def _keep(p: F32, decoded: F32, residual: F32, back: np.float32, largest: np.float32) -> None:
    """The error; where there is none to speak of, the element itself if it can be sent later."""
    for i in range(residual.size):
        error, whole = (p[i] - decoded[i]) * back, p[i] * back
        kept = whole if np.abs(whole) <= largest else residual[i]
        residual[i] = error if magnitude_bits(error) < INFINITY else kept


@lean_nested
def _row(sizes: Sizes, elems: int, tile: int, i: int) -> tuple[int, int]:
    """Where row i of a tile begins and ends; it is empty beyond the last element."""
    height, chunk, row_elems = sizes[:3]
    across = (row_elems + chunk - 1) // chunk
    column = tile % across * chunk
    low = (tile // across * height + i) * row_elems + column
    return min(low, elems), min(low + min(chunk, row_elems - column), elems)


@lean_nested
def _transform_tile(
    x: Values,
    residual: F32 | None,
    loss_scale: np.float32,
    tile: int,
    sizes: Sizes,
    matrices: tuple[F64, F64],
    rooms: Rooms,
) -> bool:
    """Leave a tile's coefficients in the first room; return whether all of p is finite."""
    height, chunk = sizes[:2]
    coefficients, lines, room, _, _, _, sums = rooms
    finite, rows = True, 0
    for i in range(height):
        low, high = _row(sizes, x.size, tile, i)
        if low == high:
            break
        now, left = view(x, low, high), view(residual, low, high)
        p = view(room_for_p(now, left, room), 0, now.size)
        finite &= np.isfinite(fill_largest(now, left, loss_scale, p, None, None, 0))
        _transform(p, matrices[1], sums)
        _round(sums, view(lines if height > 1 else coefficients, i * chunk, (i + 1) * chunk))
        rows += 1
    for j in range(height if height > 1 else 0):
        line = view(matrices[0], j * chunk, (j + 1) * chunk)
        _transform_columns(lines, rows, line, sums)
        _round(sums, view(coefficients, j * chunk, (j + 1) * chunk))
    return finite


@lean_nested
def _keep_tile(
    x: Values,
    residual: F32,
    factors: Factors,
    largest: np.float32,
    tile: int,
    sizes: Sizes,
    decoded: F32,
    room: F32,
) -> None:
    for i in range(sizes[0]):
        low, high = _row(sizes, x.size, tile, i)
        now, left = view(x, low, high), view(residual, low, high)
        p = view(room_for_p(now, left, room), 0, now.size)
        fill_largest(now, left, factors[0], p, None, None, 0)
        _keep(p, view(decoded, i * sizes[1], (i + 1) * sizes[1]), left, factors[1], largest)


@lean
def _encode(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    limits: Limits,
    values: Values,
    positions: U8,
    sizes: Sizes,
    matrices: tuple[F64, F64],
    rooms: Rooms,
) -> None:
    kept, width, position_bytes = sizes[3:]
    coefficients, lines, room, sent, keys, chosen, sums = rooms
    for t in range(values.size // kept):
        finite = _transform_tile(x, residual, factors[0], t, sizes, matrices, rooms)
        if _largest_key(coefficients, keys) < limits[0]:
            _choose(coefficients, keys, sent, chosen)
        else:
            _mark_overflow(sent, chosen)
        _send(sent, view(values, t * kept, (t + 1) * kept))
        _pack(chosen, width, view(positions, t * position_bytes, (t + 1) * position_bytes))
        if residual is not None and finite:
            _transform_back(sent, chosen, sizes[0], matrices[0], lines, coefficients, sums)
            _keep_tile(x, residual, factors, limits[1], t, sizes, coefficients, room)


@jit
def _check(positions: U8, kept: int, width: int, position_bytes: int) -> bool:
    chosen = np.empty(kept, np.uint16)
    for low in range(0, positions.size, position_bytes):
        if not _unpack(view(positions, low, low + position_bytes), width, chosen):
            return False
    return True


@jit
def _decode(
    values: Values,
    positions: U8,
    out: F32,
    weight: np.float32,
    add: bool,
    sizes: Sizes,
    table: F64,
    rooms: Rooms,
) -> None:
    height, chunk, _, kept, width, position_bytes = sizes
    decoded, lines, _, some, _, chosen, sums = rooms
    for t in range(values.size // kept):
        _unpack(view(positions, t * position_bytes, (t + 1) * position_bytes), width, chosen)
        for i in range(kept):
            some[i] = load(values, t * kept + i)
        _transform_back(some, chosen, height, table, lines, decoded, sums)
        for i in range(height):
            low, high = _row(sizes, out.size, t, i)
            line = view(decoded, i * chunk, (i + 1) * chunk)
            combine(view(out, low, high), line, weight, add)


def _sizes(form: ChunkForm) -> Sizes:
    return form.height, form.chunk, form.row_elems, form.kept, form.width, form.position_bytes


def _rooms(form: ChunkForm) -> Rooms:
    """A tile's coefficients, rows half transformed, p, what is sent, keys, positions and sums."""
    coefficients, lines = np.empty((2, form.tile_elems), np.float32)
    room, sums = np.empty(form.chunk, np.float32), np.empty(form.chunk)
    sent = np.empty(form.kept, np.float32)
    keys, chosen = np.empty(form.tile_elems, np.uint32), np.empty(form.kept, np.uint16)
    return coefficients, lines, room, sent, keys, chosen, sums


def _part(form: ChunkForm, values: Values, positions: U8, low: int, high: int) -> tuple[Values, U8]:
    """Values and positions of the bands between two of their edges."""
    (first, begin), (last, end) = form.sizes(low), form.sizes(high)
    return bits_of(values[first:last]), positions[begin:end]


def keep_coefficients(
    x: Gradient,
    values: Coefficients,
    positions: U8,
    *,
    form: ChunkForm,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    elements, factors = bits_of(x), factors_of(loss_scale)
    limits = TOO_LARGE[values.dtype], np.float32(largest_whole(values))
    table, turned = (matrix.reshape(-1) for matrix in basis(form.chunk))

    def work(low: int, high: int) -> None:
        _encode(
            elements[low:high],
            None if residual is None else residual[low:high],
            factors,
            limits,
            *_part(form, values, positions, low, high),
            _sizes(form),
            (table, turned),
            _rooms(form),
        )

    over_slices(x.size, form.band_elems, work)


def are_positions(positions: U8, *, form: ChunkForm) -> bool:
    return bool(_check(positions, form.kept, form.width, form.position_bytes))


def add_coefficients(
    values: Coefficients,
    positions: U8,
    out: F32,
    *,
    form: ChunkForm,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    factor, table = np.float32(weight), basis(form.chunk)[0].reshape(-1)

    def work(low: int, high: int) -> None:
        part = _part(form, values, positions, low, high)
        _decode(*part, out[low:high], factor, add, _sizes(form), table, _rooms(form))

    over_slices(out.size, form.band_elems, work)
