"""Hadamard rotations for NumPy arrays; see :mod:`compressa.kernels.hadamard`.

Two butterflies are done in one pass over a chunk, which stays in the first-level cache, between
two buffers. They read four neighbours and write to four quarters, so that every pass is the same
loop and vectorises, whatever the stride of the textbook's butterfly.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8, U32
from ..hadamard import Codebook, Sums
from ..philox import Noise
from ..threads import over_slices
from ._feedback import combine
from ._jit import jit, lean_nested, nested
from ._noise import Key, drawn_at, noise_buffer, noise_key
from ._prefetch import fetch
from ._view import view

_PLANES = 32
_CODES = 16
_ZERO, _HALF = np.float32(0), np.float32(0.5)


@lean_nested
def _pairs(x: F32, low: F32, high: F32) -> None:
    for i in range(low.size):
        a, b = x[2 * i], x[2 * i + 1]
        low[i] = a + b
        high[i] = a - b


@lean_nested
def _fours(x: F32, first: F32, second: F32, third: F32, fourth: F32) -> None:
    for i in range(first.size):
        a, b, c, d = x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]
        sum_ab, sum_cd, less_ab, less_cd = a + b, c + d, a - b, c - d
        first[i] = sum_ab + sum_cd
        second[i] = less_ab + less_cd
        third[i] = sum_ab - sum_cd
        fourth[i] = less_ab - less_cd


@nested
def _hadamard(x: F32, spare: F32) -> F32:
    """Transform; the result is in one of the two, and returned."""
    size, done = x.size, 1
    quarter, half = size // 4, size // 2
    while 4 * done <= size:
        _fours(
            x,
            view(spare, 0, quarter),
            view(spare, quarter, half),
            view(spare, half, half + quarter),
            view(spare, half + quarter, size),
        )
        x, spare, done = spare, x, 4 * done
    if done < size:
        _pairs(x, view(spare, 0, half), view(spare, half, size))
        x = spare
    return x


@lean_nested
def _sign_plane(words: U32, plane: np.uint32, factor: np.float32, x: F32) -> None:
    for i in range(words.size):
        minus = np.uint32(np.uint32(words[i] >> plane) & np.uint32(1))
        x[i] = x[i] * (-factor if minus else factor)


@nested
def _sign(words: U32, factor: np.float32, x: F32) -> None:
    """Multiply by the factor, and by the signs."""
    width = words.size
    for plane in range(_PLANES):
        low = plane * width
        _sign_plane(words, np.uint32(plane), factor, view(x, low, low + width))


@lean_nested
def _copy(source: F32, x: F32) -> None:
    for i in range(source.size):
        x[i] = source[i]
    for i in range(source.size, x.size):
        x[i] = _ZERO


@lean_nested
def _locate(v: F32, factor: np.float32, middle: np.float32, noise: U32, u: F32) -> None:
    """Turn coordinates into indices of the table, and noise into numbers from 0.5."""
    for i in range(v.size):
        v[i] = v[i] * factor + middle
        u[i] = np.float32(np.int32(noise[i])) + _HALF


@lean_nested
def _count_four(t: F32, u: F32, lows: F32, gaps: F32, counts: U8) -> None:
    # A look-up in a table does not vectorise, comparisons do.
    low_0, low_1, low_2, low_3 = lows[0], lows[1], lows[2], lows[3]
    gap_0, gap_1, gap_2, gap_3 = gaps[0], gaps[1], gaps[2], gaps[3]
    for i in range(t.size):
        passed = np.int32(t[i] > low_0 + gap_0 * u[i]) + np.int32(t[i] > low_1 + gap_1 * u[i])
        passed += np.int32(t[i] > low_2 + gap_2 * u[i]) + np.int32(t[i] > low_3 + gap_3 * u[i])
        counts[i] += np.uint8(passed)


@lean_nested
def _pack(counts: U8, codes: U8) -> None:
    half = codes.size
    for i in range(half):
        codes[i] = counts[i] | np.uint8(counts[i + half] << np.uint8(4))


@nested
def _power(size: int) -> int:
    power = 0
    while 1 << power < size:
        power += 1
    return power


@nested
def _rotated(n: int, chunk: int) -> int:
    """Elements of a chunk with its padding."""
    size = _PLANES
    while size < n:
        size *= 2
    return min(size, chunk)


@nested
def _reach(norm: np.float32, power: int, clip: float) -> np.float32:
    if not norm <= np.float32(2.0**100):
        return np.float32(np.nan)
    if norm < np.float32(2.0**-100):
        return _ZERO
    return np.float32(norm * np.float32(clip * 2.0 ** -((power + 1) // 2)))


@jit
def _quantize(
    p: F32,
    norms: F32,
    signs: U32,
    codes: U8,
    clip: float,
    chunk: int,
    middle: np.float32,
    thresholds: tuple[F32, F32],
    key: Key | None,
    drawn: U32 | None,
) -> None:
    lows, gaps = thresholds
    first, second = np.empty(chunk, np.float32), np.empty(chunk, np.float32)
    numbers, counted = np.empty(chunk, np.float32), np.empty(chunk, np.uint8)
    for c in range(norms.size):
        low, high = c * chunk, min((c + 1) * chunk, p.size)
        size = _rotated(high - low, chunk)
        power, x, spare = _power(size), view(first, 0, size), view(second, 0, size)
        _copy(view(p, low, high), x)
        fetch(p, high, high + chunk)
        pre = np.float32(2.0 ** -((power + 1) // 2))
        _sign(view(signs, low // _PLANES, (low + size) // _PLANES), pre, x)
        t = _hadamard(x, spare)
        reach = _reach(norms[c], power, clip)
        factor = np.float32(middle / reach) if reach != _ZERO else _ZERO
        at = drawn_at(key, low, low + size, drawn)
        u, counts = view(numbers, 0, size), view(counted, 0, size)
        _locate(t, factor, middle, view(drawn, at, at + size), u)
        counts[:] = np.uint8(0)
        for four in range(0, _CODES, 4):
            _count_four(t, u, view(lows, four, four + 4), view(gaps, four, four + 4), counts)
        _pack(counts, view(codes, low // 2, (low + size) // 2))


@lean_nested
def _look_up(codes: U8, shift: np.uint8, table: Sums, add: bool, sums: Sums) -> None:
    if add:
        for i in range(sums.size):
            sums[i] += table[(codes[i] >> shift) & np.uint8(15)]
    else:
        for i in range(sums.size):
            sums[i] = table[(codes[i] >> shift) & np.uint8(15)]


@jit
def _sum(codes: U8, table: Sums, sums: Sums, chunk: int, add: bool) -> None:
    for low in range(0, sums.size, chunk):
        half = min(chunk, sums.size - low) // 2
        packed = view(codes, low // 2, low // 2 + half)
        _look_up(packed, np.uint8(0), table, add, view(sums, low, low + half))
        _look_up(packed, np.uint8(4), table, add, view(sums, low + half, low + 2 * half))


@lean_nested
def _centre(sums: Sums, most: np.int32, scale: np.float32, w: F32) -> None:
    for i in range(w.size):
        w[i] = np.float32(np.int32(np.int32(2) * np.int32(sums[i]) - most)) * scale


@lean_nested
def _scale(w: F32, factor: np.float32) -> None:
    for i in range(w.size):
        w[i] *= factor


@jit
def _back(
    sums: Sums,
    norms: F32,
    signs: U32,
    out: F32,
    clip: float,
    chunk: int,
    most: np.int32,
    weight: np.float32,
    add: bool,
) -> None:
    first, second = np.empty(chunk, np.float32), np.empty(chunk, np.float32)
    for c in range(norms.size):
        low, high = c * chunk, min((c + 1) * chunk, out.size)
        size = _rotated(high - low, chunk)
        power, target = _power(size), view(out, low, high)
        reach = _reach(norms[c], power, clip)
        if np.isnan(reach):
            if not add:
                target[:] = np.float32(np.nan)
        else:
            w, spare = view(first, 0, size), view(second, 0, size)
            _centre(view(sums, low, low + size), most, np.float32(reach / np.float32(most)), w)
            _scale(w, np.float32(2.0 ** -(power // 2)))
            y = _hadamard(w, spare)
            _sign(view(signs, low // _PLANES, (low + size) // _PLANES), np.float32(1), y)
            combine(target, y, weight, add)


def rotate_quantize(
    p: F32, norms: F32, signs: U32, codes: U8, *, book: Codebook, noise: Noise
) -> None:
    chunk = book.chunk

    def work(low: int, high: int) -> None:
        last = -(-high // chunk)
        _quantize(
            p[low:high],
            norms[low // chunk : last],
            signs[low // _PLANES : last * chunk // _PLANES],
            codes[low // 2 : last * chunk // 2],
            float(book.clip),
            chunk,
            np.float32(book.levels) * _HALF,
            book.thresholds,
            noise_key(noise, low),
            noise_buffer(noise, chunk),
        )

    over_slices(p.size, chunk, work)


def sum_codes(codes: U8, n: int, sums: Sums, *, book: Codebook, add: bool = False) -> None:
    table = np.array(book.table, sums.dtype)

    def work(low: int, high: int) -> None:
        _sum(codes[low // 2 : high // 2], table, sums[low:high], book.chunk, add)

    over_slices(sums.size, book.chunk, work)


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
    chunk, most = book.chunk, np.int32(count * book.levels)

    def work(low: int, high: int) -> None:
        last = -(-high // chunk)
        _back(
            sums[low : last * chunk],
            norms[low // chunk : last],
            signs[low // _PLANES : last * chunk // _PLANES],
            out[low:high],
            float(book.clip),
            chunk,
            most,
            np.float32(weight),
            add,
        )

    over_slices(out.size, chunk, work)
