"""Random Hadamard rotations, and 4-bit codes of what they give, which sum while compressed.

THC (Li et al., NSDI 2024): a chunk p of d elements is rotated by H D, with D random signs and H the
Hadamard matrix, after which its coordinates are nearly normal with the deviation ||p||, whatever p
was. They are limited to -clip ||p|| to clip ||p||, rounded stochastically to one of 16 values from
a table of integers in 0..levels, and sent as 4-bit codes. The table's integers can be summed, and a
sum of them is decoded like one of them: H is linear.

Chunks: d elements each, d a power of two and at least 32; what is left over at the end is a chunk
of the least such power that holds it, padded with zeros. `rotated_elems` counts with the padding.

Exact arithmetic, in float32, for a chunk of d = 2**b elements, with a = (b+1)//2:

* Signs: element i takes bit i // (d/32) of word i % (d/32) of the chunk's d/32 words; set is minus.
* H, unnormalised: b times y[i] = x[2i] + x[2i+1], y[i + d/2] = x[2i] - x[2i+1], which leaves the
  coordinates in their natural order (Sylvester's). v = H (D p 2**-a).
* reach = norm * float32(clip * 2**-a). A norm below 2**-100 counts as 0, one above 2**100 as NaN.
* Code: t = v * ((levels/2) / reach) + levels/2, with 0 for the quotient where reach is 0; u = noise
  + 0.5 with the 23 random bits of the element in the rotated array (`philox.random_fractions`). The
  code is the number of c in 0..14 with t > T[c] + ((T[c+1] - T[c]) / 2**23) * u: of the neighbours
  of t in the table the upper one with the right probability, to float rounding; so unbiased. What
  lies outside the table, NaN too, gets 0 or 15.
* Two codes to a byte, planar in their chunk: byte i has element i in its low and element i + d/2 in
  its high nibble.
* A sum S of the integers of `count` ranks decodes to D H (w 2**(a-b)), with
  w = (2 S - count levels) * (reach / (count levels)): exactly the mean of what each decodes to, but
  for float rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import F32, U8, U32, block_count, check_array
from ._backends import backend
from .philox import FRACTION_BITS, Noise, check_noise, random_fractions

_HALF = np.float32(0.5)

LEAST = 32
Sums = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """What the 16 codes stand for.

    Example:
        >>> book = Codebook(table=tuple(range(16)), clip=2.5, chunk=256)
        >>> book.levels, book.rotated_elems(300)
        (15, 320)

    Attributes:
        table: 16 strictly increasing integers, the first 0; the last is `levels`.
        clip: Limit of a coordinate, in deviations.
        chunk: Elements of a chunk, a power of two from 32 to 65536.

    Raises:
        ValueError: One of them is not so.
    """

    table: tuple[int, ...]
    clip: float
    chunk: int

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.table, self.table[1:], strict=False))
        if len(self.table) != 16 or self.table[0] != 0 or not rising or self.table[-1] > 255:
            raise ValueError(f"table must hold 16 integers that rise from 0, not {self.table}")
        if not 0 < self.clip < 2.0**20:
            raise ValueError(f"clip must be positive, not {self.clip}")
        power = self.chunk.bit_count() == 1
        if not (LEAST <= self.chunk <= 1 << 16 and power):
            raise ValueError(f"chunk must be a power of two from 32 to 65536, not {self.chunk}")

    @property
    def levels(self) -> int:
        """The largest integer."""
        return self.table[-1]

    def rotated_elems(self, n: int) -> int:
        """Elements that ``n`` have after the last chunk is padded."""
        rest = n % self.chunk
        return n - rest + (max(LEAST, 1 << (rest - 1).bit_length()) if rest else 0)

    @cached_property
    def thresholds(self) -> tuple[F32, F32]:
        """T[c] and (T[c+1] - T[c]) / 2**23; for c = 15 what nothing passes."""
        low = np.array([*self.table[:15], np.inf], np.float32)
        gaps = np.append(np.diff(np.array(self.table)) / 2**FRACTION_BITS, 0.0).astype(np.float32)
        return low, gaps


def rotate_quantize(
    p: F32, norms: F32, signs: U32, codes: U8, *, book: Codebook, noise: Noise
) -> None:
    """Rotate, and write the codes.

    Args:
        p: float32[n].
        norms: float32[chunks], what counts as the length of each chunk; at least 0, or NaN, where
            the codes mean nothing.
        signs: uint32[rotated / 32], random bits, the same on every rank.
        codes: uint8[rotated / 2], overwritten.
        book: Chunks and codes.
        noise: Where this rank's own random numbers begin.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``noise`` is wrong.
    """
    check_array("p", p, np.float32)
    size = _check_chunks(p.size, norms, signs, book)
    check_array("codes", codes, np.uint8, (size // 2,), writable=True)
    check_noise(noise, size)
    if kernel := backend("hadamard", p, norms, signs, codes):
        kernel.rotate_quantize(p, norms, signs, codes, book=book, noise=noise)
        return
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
    """Look codes up, and write their integers, or add them to others.

    Args:
        codes: uint8[rotated / 2]; any bytes are valid.
        n: Elements before the padding.
        sums: uint8[rotated] or uint16[rotated], in the order of the rotated coordinates. Integers
            wrap, so ``levels`` times the number of ranks must fit.
        book: Chunks and codes.
        add: Whether to add to what ``sums`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    size = book.rotated_elems(n)
    check_array("codes", codes, np.uint8, (size // 2,))
    _check_sums(sums, size, writable=True)
    if kernel := backend("hadamard", codes, sums):
        kernel.sum_codes(codes, n, sums, book=book, add=add)
        return
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
    """Decode the mean of ``count`` ranks: out (+)= weight * mean, product rounded first.

    A chunk whose norm is NaN becomes NaN; with ``add`` it is left as it was.

    Args:
        sums: uint8[rotated] or uint16[rotated], as `sum_codes` wrote them.
        norms: float32[chunks], those with which the codes were made.
        signs: uint32[rotated / 32], those with which the codes were made.
        out: float32[n], overwritten, or added to.
        book: Chunks and codes.
        count: Number of ranks whose integers were summed; at least 1.
        weight: Factor on every value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``count`` is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    size = _check_chunks(out.size, norms, signs, book)
    _check_sums(sums, size)
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    if kernel := backend("hadamard", sums, norms, signs, out):
        kernel.rotate_back(sums, norms, signs, out, book=book, count=count, weight=weight, add=add)
        return
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


def _check_chunks(n: int, norms: F32, signs: U32, book: Codebook) -> int:
    size = book.rotated_elems(n)
    check_array("norms", norms, np.float32, (block_count(n, book.chunk),))
    check_array("signs", signs, np.uint32, (size // 32,))
    return size


def _check_sums(sums: Sums, size: int, *, writable: bool = False) -> None:
    if sums.dtype not in (np.uint8, np.uint16):
        raise TypeError(f"sums must be uint8 or uint16, not {sums.dtype}")
    check_array("sums", sums, sums.dtype, (size,), writable=writable)


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
