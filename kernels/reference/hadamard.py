"""Hadamard rotations in NumPy; see :mod:`compressa.kernels.hadamard`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._arrays import F32, U8, U32
from ..hadamard import Codebook, Sums
from ..philox import Noise
from .philox import random_fractions

_HALF = np.float32(0.5)


def _chunks(n: int, book: Codebook) -> Iterator[tuple[int, int, int, int]]:
    """Number, first element, elements and rotated elements of each chunk."""
    for c, low in enumerate(range(0, n, book.chunk)):
        size = min(book.chunk, n - low)
        yield c, low, size, book.rotated_elems(size)


def _exponents(size: int) -> tuple[int, int]:
    """Powers of two that are divided out before and after."""
    power = size.bit_length() - 1
    return (power + 1) // 2, power // 2


def _signed(x: F32, words: U32) -> F32:
    planes = words[None, :] >> np.arange(32, dtype=np.uint32)[:, None]
    return np.where(planes.ravel() & np.uint32(1), -x, x)


def _hadamard(x: F32) -> F32:
    for _ in range(x.size.bit_length() - 1):
        x = np.concatenate([x[0::2] + x[1::2], x[0::2] - x[1::2]])
    return x


def _reach(norm: np.float32, size: int, book: Codebook) -> np.float32:
    if not norm <= 2.0**100:
        return np.float32(np.nan)
    if norm < 2.0**-100:
        return np.float32(0)
    return norm * np.float32(book.clip * 2.0 ** -_exponents(size)[0])


def rotate_quantize(
    p: F32, norms: F32, signs: U32, codes: U8, *, book: Codebook, noise: Noise
) -> None:
    """See :func:`compressa.kernels.hadamard.rotate_quantize`."""
    lows, gaps = book.thresholds
    middle = np.float32(book.levels) * _HALF
    fractions = np.empty(2 * codes.size, np.uint32)
    random_fractions(fractions, noise)
    for c, low, n, size in _chunks(p.size, book):
        padded = np.zeros(size, np.float32)
        padded[:n] = p[low : low + n] * np.float32(2.0 ** -_exponents(size)[0])
        v = _hadamard(_signed(padded, signs[low // 32 : (low + size) // 32]))
        reach = _reach(norms[c], size, book)
        t = v * (middle / reach if reach else np.float32(0)) + middle
        u = fractions[low : low + size].astype(np.float32) + _HALF
        passed = t[:, None] > lows + gaps * u[:, None]
        pairs = passed.sum(axis=1, dtype=np.uint8).reshape(2, -1)
        codes[low // 2 : (low + size) // 2] = pairs[0] | pairs[1] << 4


def sum_codes(codes: U8, n: int, sums: Sums, *, book: Codebook, add: bool = False) -> None:
    """See :func:`compressa.kernels.hadamard.sum_codes`."""
    table = np.array(book.table, sums.dtype)
    for _, low, _, size in _chunks(n, book):
        pairs = codes[low // 2 : (low + size) // 2]
        integers = table[np.concatenate([pairs & 15, pairs >> 4])]
        part = sums[low : low + size]
        part[:] = part + integers if add else integers


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
    """See :func:`compressa.kernels.hadamard.rotate_back`."""
    most = count * book.levels
    for c, low, n, size in _chunks(out.size, book):
        part = out[low : low + n]
        reach = _reach(norms[c], size, book)
        if np.isnan(reach):
            part[:] = part if add else np.nan
            continue
        integers = 2 * sums[low : low + size].astype(np.int32) - most
        w = integers.astype(np.float32) * (reach / np.float32(most))
        w = w * np.float32(2.0 ** -_exponents(size)[1])
        y = _signed(_hadamard(w), signs[low // 32 : (low + size) // 32])[:n]
        weighted = np.float32(weight) * y
        part[:] = part + weighted if add else weighted
