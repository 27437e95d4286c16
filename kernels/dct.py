"""Cosine transforms of chunks and tiles, of which the largest coefficients are kept.

DeMo (Peng, Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization", 2024) cuts a matrix into
tiles of N x N elements and a vector into chunks of N, takes the orthonormal DCT-II along each
dimension and keeps the k largest coefficients of each. The transform keeps lengths, so what is left
out of a tile of n elements is at most 1 - k/n of the square of p.

    c[j] = sum_i p[i] T[j, i],    T[j, i] = s[j] cos(pi (2i + 1) j / (2N)),
    s[0] = sqrt(1/N), s[j] = sqrt(2/N),    p[i] = sum_j c[j] T[j, i]

In a tile this is done to its rows, and then to the columns of the result; the position j of a
coefficient is N times its row's plus its column's. Below, a chunk is a tile of one row. What goes
beyond the matrix or the vector is padded with zeros, and all n coefficients can be kept.

Positions on the wire, per tile `ChunkForm.position_bytes` bytes, of two formats the shorter one
(the first of equal ones): k increasing numbers of log2 n bits in one little-endian bit stream, the
last byte filled with zeros; or a bitmap, element e being bit e % 8 of byte e // 8. Values are
float32, float16 or bfloat16, k per tile, in the order of their positions. Tiles follow each other
from left to right, then downwards.

Exact arithmetic:

* p = x + loss_scale * residual in float32, product rounded first; p = x without a residual.
* T in float64, by halving angles: with +, *, / and sqrt only, which IEEE 754 rounds the same way on
  every machine. No library's cosine is asked, and so replicas agree on T to the bit.
* A coefficient is the float64 sum over i in order, each product rounded, rounded to float32 at the
  end; so after the rows, and again after the columns. Kept: the k largest |c|; of equal ones the
  lower j. Values of 16 bits are these, rounded once more, to nearest and ties to even.
* decode: first each row of coefficients of which one is kept: for each i the float64 sum over the
  kept j in order, each product rounded, rounded to float32 at the end. Then, if the tile has more
  than one row, each column likewise, over those rows in order. New residual =
  (p - decode) * (1 / loss_scale) in float32.
* If any coefficient or value of a tile is infinite or NaN, all its values are NaN, at positions 0
  to k-1. Its residual is left as it was if some p is not finite. Otherwise, and for an element
  whose residual would not be finite, it is w = p * (1 / loss_scale) where |w| <= 2**121, or 2**9
  for values in float16, which a smaller loss scale will send, and left as it was elsewhere: no
  values hold the coefficients of larger ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import (
    F32,
    F64,
    U8,
    Gradient,
    block_count,
    check_array,
    check_feedback,
    check_gradient,
)
from ._backends import backend
from ._numpy import combine, effective, put, remainder, widened

Positions = npt.NDArray[np.intp]

Coefficients = npt.NDArray[Any]
"""float32, float16, or uint16 that holds the bits of bfloat16."""

LEAST, MOST = 16, 64


def largest_whole(values: Coefficients) -> float:
    """Return up to which elements' coefficients are finite: they are at most 64 times as large."""
    return 2.0**9 if values.dtype == np.float16 else 2.0**121


@dataclass(frozen=True, kw_only=True)
class ChunkForm:
    """How tiles are cut, and what is kept of each.

    Attributes:
        chunk: N: elements of a chunk, and of a tile's side; a power of two from 16 to 64.
        kept: k: coefficients that are kept of each, 1 to `tile_elems`.
        columns: Elements of a row of the matrix that is cut into tiles; 0 for a vector, which is
            cut into chunks.

    Raises:
        ValueError: One of them is not so.
    """

    chunk: int
    kept: int
    columns: int = 0

    def __post_init__(self) -> None:
        if not LEAST <= self.chunk <= MOST or self.chunk.bit_count() != 1:
            raise ValueError(f"chunk must be a power of two from 16 to 64, not {self.chunk}")
        if self.columns < 0:
            raise ValueError(f"columns must not be negative, not {self.columns}")
        if not 1 <= self.kept <= self.tile_elems:
            raise ValueError(f"kept must lie between 1 and {self.tile_elems}, not {self.kept}")

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return self.chunk if self.columns else 1

    @property
    def row_elems(self) -> int:
        """Elements from one row of a tile to the next."""
        return self.columns or self.chunk

    @property
    def tile_elems(self) -> int:
        """Coefficients of a tile."""
        return self.height * self.chunk

    @property
    def band_elems(self) -> int:
        """Elements of the tiles that lie side by side."""
        return self.height * self.row_elems

    @property
    def band_tiles(self) -> int:
        """Tiles that lie side by side."""
        return block_count(self.row_elems, self.chunk)

    @property
    def width(self) -> int:
        """Bits of a position in the bit stream; 0 for a bitmap."""
        width = self.tile_elems.bit_length() - 1
        return width if (self.kept * width + 7) // 8 <= self.tile_elems // 8 else 0

    @property
    def position_bytes(self) -> int:
        """Bytes of the positions of one tile."""
        return (self.kept * self.width + 7) // 8 if self.width else self.tile_elems // 8

    def tiles(self, n: int) -> int:
        """Return how many tiles ``n`` elements have."""
        return block_count(n, self.band_elems) * self.band_tiles

    def sizes(self, n: int) -> tuple[int, int]:
        """Return how many values and how many bytes of positions ``n`` elements have."""
        tiles = self.tiles(n)
        return tiles * self.kept, tiles * self.position_bytes


@cache
def basis(chunk: int) -> tuple[F64, F64]:
    """Return T as float64[chunk, chunk], and its transpose; both contiguous and read-only."""
    quarter, steps = _quarter(chunk), 4 * chunk
    half = np.concatenate([quarter, -quarter[-2::-1]])
    angles = np.arange(chunk)[:, None] * (2 * np.arange(chunk) + 1)[None, :] % steps
    table = np.sqrt(2.0 / chunk) * half[np.minimum(angles, steps - angles)]
    table[0] = np.sqrt(1.0 / chunk)
    turned = np.ascontiguousarray(table.T)
    for array in (table, turned):
        array.flags.writeable = False
    return table, turned


def _quarter(chunk: int) -> F64:
    """cos(pi m / (2 chunk)) for m = 0 to chunk, by cos((a+b)/2) = (cos a + cos b) / (2 cos h).

    h = (b-a)/2 is halved too: cos(h/2) = sqrt((1 + cos h) / 2).
    """
    cosines = np.array([1.0, 0.0])
    half = np.sqrt(0.5)
    while cosines.size <= chunk:
        finer = np.empty(2 * cosines.size - 1)
        finer[::2] = cosines
        finer[1::2] = (cosines[:-1] + cosines[1:]) / (2.0 * half)
        cosines, half = finer, np.sqrt((1.0 + half) / 2.0)
    return cosines


def keep_coefficients(
    x: Gradient,
    values: Coefficients,
    positions: U8,
    *,
    form: ChunkForm,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Transform ``x``, plus what earlier steps left behind, and keep what is not sent for later.

    Example:
        >>> import numpy as np
        >>> form = ChunkForm(chunk=16, kept=1)
        >>> values, positions = np.empty(1, np.float32), np.empty(1, np.uint8)
        >>> keep_coefficients(np.full(16, 0.5, np.float32), values, positions, form=form)
        >>> values.tolist(), positions.tolist()
        ([2.0], [0])

    Args:
        x: float32[n], float16[n], or uint16[n] with the bits of bfloat16.
        values: float32[form.sizes(n)[0]]; float16 or, for bfloat16, uint16 too. Overwritten.
        positions: uint8[form.sizes(n)[1]], overwritten.
        form: Tiles, and how many coefficients of each.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    _check_payload(values, positions, x.size, form, writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("dct", x, values, positions, residual):
        kernel.keep_coefficients(
            x, values, positions, form=form, residual=residual, loss_scale=loss_scale
        )
        return
    for rows, chosen, packed in _tiles(x.size, form):
        left = [None if residual is None else residual[row] for row in rows]
        p = [effective(widened(x[row]), e, loss_scale) for row, e in zip(rows, left, strict=True)]
        coefficients = _transform(p, form)
        order = np.argsort(-np.abs(coefficients), kind="stable")
        kept = np.sort(order[: form.kept])
        put(coefficients[kept], values[chosen])
        if not (np.isfinite(coefficients).all() and np.isfinite(widened(values[chosen])).all()):
            kept = np.arange(form.kept)
            put(np.full(form.kept, np.nan, np.float32), values[chosen])
        sent, positions[packed] = widened(values[chosen]), _pack(kept, form)
        if residual is not None and all(np.isfinite(row).all() for row in p):
            for row, own, decoded in zip(rows, p, _decode(sent, kept, form), strict=False):
                error = remainder(own, decoded[: own.size], loss_scale)
                whole = own * (np.float32(1) / np.float32(loss_scale))
                fits = np.abs(whole) <= largest_whole(values)
                left_whole = np.where(fits, whole, residual[row])
                residual[row] = np.where(np.isfinite(error), error, left_whole)


def are_positions(positions: U8, *, form: ChunkForm) -> bool:
    """Whether each tile has exactly k different positions, in order, and nothing in unused bits.

    Args:
        positions: uint8[a multiple of form.position_bytes].
        form: Tiles, and how many coefficients of each.

    Raises:
        TypeError: The dtype is wrong.
        ValueError: The shape or the layout is wrong.
    """
    check_array("positions", positions, np.uint8)
    if positions.size % form.position_bytes:
        raise ValueError(f"positions must be a multiple of {form.position_bytes} bytes long")
    if kernel := backend("dct", positions):
        return bool(kernel.are_positions(positions, form=form))
    for packed in positions.reshape(-1, form.position_bytes):
        found = _unpack(packed, form)
        increasing = found.size == form.kept and bool((np.diff(found) > 0).all())
        if not increasing or not np.array_equal(_pack(found, form), packed):
            return False
    return True


def add_coefficients(
    values: Coefficients,
    positions: U8,
    out: F32,
    *,
    form: ChunkForm,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """Transform back into ``out``, or add to it: out (+)= weight * decode, each step rounded.

    Args:
        values: float32[form.sizes(n)[0]]; float16 or, for bfloat16, uint16 too. Any are valid.
        positions: uint8[form.sizes(n)[1]], checked before anything is written.
        out: float32[n], overwritten, or added to.
        form: Tiles, and how many coefficients of each.
        weight: Factor on every decoded value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or ``positions`` is not as `are_positions` says.
    """
    check_array("out", out, np.float32, writable=True)
    _check_payload(values, positions, out.size, form)
    if not are_positions(positions, form=form):
        raise ValueError(f"a tile does not have {form.kept} different positions in order")
    if kernel := backend("dct", values, positions, out):
        kernel.add_coefficients(values, positions, out, form=form, weight=weight, add=add)
        return
    for rows, chosen, packed in _tiles(out.size, form):
        decoded = _decode(widened(values[chosen]), _unpack(positions[packed], form), form)
        for row, line in zip(rows, decoded, strict=False):
            combine(out[row], line[: row.stop - row.start], weight, add)


def _check_payload(
    values: Coefficients, positions: U8, n: int, form: ChunkForm, *, writable: bool = False
) -> None:
    value_elems, position_bytes = form.sizes(n)
    dtype = values.dtype if values.dtype in (np.float16, np.uint16) else np.float32
    check_array("values", values, dtype, (value_elems,), writable=writable)
    check_array("positions", positions, np.uint8, (position_bytes,), writable=writable)


def _tiles(n: int, form: ChunkForm) -> Iterator[tuple[list[slice], slice, slice]]:
    """Elements of each row, values and bytes of positions of each tile."""
    for t in range(form.tiles(n)):
        band, across = divmod(t, form.band_tiles)
        first, wide = across * form.chunk, min(form.chunk, form.row_elems - across * form.chunk)
        lows = range(band * form.band_elems + first, n, form.row_elems)[: form.height]
        yield (
            [slice(low, min(low + wide, n)) for low in lows],
            slice(t * form.kept, (t + 1) * form.kept),
            slice(t * form.position_bytes, (t + 1) * form.position_bytes),
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


def _pack(positions: Positions, form: ChunkForm) -> U8:
    if not form.width:
        return np.packbits(np.isin(np.arange(form.tile_elems), positions), bitorder="little")
    bits = positions[:, None] >> np.arange(form.width) & 1
    return np.packbits(bits.ravel().astype(np.bool_), bitorder="little")


def _unpack(packed: U8, form: ChunkForm) -> Positions:
    bits = np.unpackbits(packed, bitorder="little")
    if not form.width:
        return np.flatnonzero(bits)
    rows = bits[: form.kept * form.width].reshape(form.kept, form.width)
    return rows.astype(np.intp) @ (1 << np.arange(form.width))


def _decode(values: F32, positions: Positions, form: ChunkForm) -> F32:
    """What a tile's kept coefficients decode to, as float32[height, chunk]."""
    table, turned = basis(form.chunk)
    found, columns = np.divmod(positions, form.chunk)
    kept = np.unique(found)
    rows = [_sum_in_order(values[found == j], table[columns[found == j]]) for j in kept]
    if form.height == 1:
        return rows[0][None]
    return np.stack([_sum_in_order(line[kept], np.stack(rows)) for line in turned])
