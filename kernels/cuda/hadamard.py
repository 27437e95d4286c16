"""Hadamard rotations on a GPU; see :mod:`compressa.kernels.hadamard`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .._arrays import F32, U8, U32, block_count
from ..hadamard import Codebook, Sums
from ..philox import Noise
from ._arguments import i64, random
from ._device import CTA, WARP, device, launch

_TILE = 4096  # elements that a block of threads transforms at once
_COLUMNS = 16 * CTA  # elements of a block of threads that goes through longer chunks
_SUMMED = 8 * WARP  # elements of a warp that looks codes up


def _tiles(rotated: int) -> int:
    return block_count(rotated, _TILE) + 1  # a chunk that is left over has a tile of its own


def _table(book: Codebook) -> tuple[Any, ...]:
    """``u64 table_low, u64 table_high``: a byte for each of the 16 integers."""
    packed = bytes(book.table)
    return tuple(np.uint64(int.from_bytes(part, "little")) for part in (packed[:8], packed[8:]))


def _power(chunk: int) -> np.int32:
    return np.int32(chunk.bit_length() - 1)


def _parts(n: int, book: Codebook) -> Iterator[tuple[int, int, Codebook]]:
    """First element, elements and chunks of parts whose long chunks all have one length."""
    whole = n // book.chunk * book.chunk if book.chunk > _TILE else n
    if whole:
        yield 0, whole, book
    if whole < n:
        last = Codebook(table=book.table, clip=book.clip, chunk=book.rotated_elems(n - whole))
        yield whole, n - whole, last


def rotate_quantize(
    p: F32, norms: F32, signs: U32, codes: U8, *, book: Codebook, noise: Noise
) -> None:
    for low, n, part in _parts(p.size, book):
        _rotate_quantize(
            p[low : low + n],
            norms[low // book.chunk :],
            signs[low // 32 :],
            codes[low // 2 :],
            part,
            noise._replace(start=noise.start + low),
        )


def _rotate_quantize(
    p: F32, norms: F32, signs: U32, codes: U8, book: Codebook, noise: Noise
) -> None:
    n, bits, rotated = i64(p.size), _power(book.chunk), book.rotated_elems(p.size)
    coding = *_table(book), np.float64(book.clip), *random(noise)
    if book.chunk <= _TILE:
        given = p, norms, signs, codes, n, bits
        launch("hadamard", "rotate_quantize", _tiles(rotated), CTA, *given, *coding)
        return
    half_way = device().empty(rotated, np.float32)
    launch("hadamard", "rotate_tiles", _tiles(rotated), CTA, p, signs, half_way, n, bits)
    columns = half_way, i64(rotated), norms, codes, bits
    blocks = block_count(rotated, _COLUMNS)
    launch("hadamard", "quantize_columns", blocks, CTA, *columns, *coding)


def sum_codes(codes: U8, n: int, sums: Sums, *, book: Codebook, add: bool = False) -> None:
    launch(
        "hadamard",
        f"sum_codes_{8 * sums.dtype.itemsize}",
        block_count(sums.size, _SUMMED),
        WARP,
        codes,
        sums,
        i64(n),
        _power(book.chunk),
        *_table(book),
        np.bool_(add),
    )


def rotate_back(
    sums: Sums,
    norms: F32,
    signs: U32,
    out: F32,
    *,
    book: Codebook,
    count: int,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    delivery = np.float32(weight), np.bool_(add)
    for low, n, part in _parts(out.size, book):
        _rotate_back(
            sums[low:],
            norms[low // book.chunk :],
            signs[low // 32 :],
            out[low : low + n],
            part,
            count,
            delivery,
        )


def _rotate_back(
    sums: Sums,
    norms: F32,
    signs: U32,
    out: F32,
    book: Codebook,
    count: int,
    delivery: tuple[np.float32, np.bool_],
) -> None:
    n, bits, rotated = i64(out.size), _power(book.chunk), book.rotated_elems(out.size)
    given = sums, np.bool_(sums.dtype == np.uint16), norms
    decoding = np.int32(count * book.levels), np.float64(book.clip)
    if book.chunk <= _TILE:
        rest = signs, out, n, bits, *decoding, *delivery
        launch("hadamard", "rotate_back", _tiles(rotated), CTA, *given, *rest)
        return
    half_way = device().empty(rotated, np.float32)
    tiles = half_way, n, bits, *decoding
    launch("hadamard", "rotate_tiles_back", _tiles(rotated), CTA, *given, *tiles)
    columns = half_way, i64(rotated), norms, signs, out, n, bits, *decoding, *delivery
    launch("hadamard", "deliver_columns", block_count(rotated, _COLUMNS), CTA, *columns)
