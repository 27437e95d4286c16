"""Random bits that depend on what they are for, never on who draws them or when: Philox.

Counter-based generation (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2,
3", SC 2011) turns (key, counter) into four words by a keyed bijection. So the word of an element is
the same whether it is drawn alone, in a slice, by another thread or after a resume, and no state is
kept anywhere.

Seven rounds are used: the fewest with which Philox4x32 passes all of BigCrush in that paper. (Ten,
its default, only add a margin; the reference takes the number of rounds as an argument, which ties
it to the published known answers for ten.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._arrays import U32, U64, check_array
from ._backends import backend

_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85

ROUNDS = 7
ROW = 1024  # elements whose numbers are drawn together
FRACTION_BITS = 23  # of `random_fractions`


class Noise(NamedTuple):
    """Where a run of random numbers begins; kernels that round stochastically take it.

    Attributes:
        seed: The run's seed.
        stream: What the bits are for. Private streams contain rank and stage.
        step: The training step.
        parameter: Number of the parameter.
        start: Element number of the array's first element; below 2**63.
    """

    seed: int
    stream: int
    step: int
    parameter: int
    start: int = 0


def random_words(
    out: U32, *, seed: int, stream: int, step: int, parameter: int, start: int = 0
) -> None:
    """Fill ``out`` with uniform 32-bit words for the elements from ``start`` on.

    Element e = start + i gets word e % 4 of Philox4x32-7 at
    key = (seed mod 2**32, stream mod 2**32) and
    counter = (block mod 2**32, block >> 32, step mod 2**32, parameter mod 2**32), block = e // 4.

    Example:
        >>> import numpy as np
        >>> whole, part = np.empty(8, np.uint32), np.empty(3, np.uint32)
        >>> random_words(whole, seed=1, stream=0, step=5, parameter=2)
        >>> random_words(part, seed=1, stream=0, step=5, parameter=2, start=3)
        >>> bool((whole[3:6] == part).all())
        True

    Args:
        out: uint32[n], overwritten.
        seed: The run's seed.
        stream: What the bits are for. Private streams contain rank and stage.
        step: The training step.
        parameter: Number of the parameter.
        start: Element number of ``out[0]``; not negative, and start + n below 2**63.

    Raises:
        TypeError: ``out`` is not a uint32 array.
        ValueError: ``out`` is not contiguous, or ``start`` is out of range.
    """
    check_array("out", out, np.uint32, writable=True)
    if not 0 <= start < 2**63 - out.size:
        raise ValueError(f"start must lie between 0 and 2**63 - {out.size}, not {start}")
    if kernel := backend("philox", out):
        kernel.random_words(
            out, seed=seed, stream=stream, step=step, parameter=parameter, start=start
        )
        return
    element = np.uint64(start) + np.arange(out.size, dtype=np.uint64)
    block = element >> np.uint64(2)
    words = np.array(_words_of(block, seed=seed, stream=stream, step=step, parameter=parameter))
    out[:] = np.take_along_axis(words, (element & np.uint64(3)).astype(np.int64)[None], 0)[0]


def random_fractions(out: U32, noise: Noise) -> None:
    """Fill ``out`` with uniform 23-bit numbers: enough to round an element, at half a word's price.

    Element e = start + i lies in row e // 1024 at index j = e % 1024; it gets, of word j // 256 of
    Philox4x32-7 with the key of `random_words` and block = 128 * (e // 1024) + j % 128, bits 0 to
    22 where j // 128 is even, and bits 9 to 31 where it is odd. (So 128 neighbours come from as
    many blocks, which suits vector registers.)

    The highest 14 bits of the first of two elements are the lowest 14 of the second. Given the
    first, the second may lie in each 512th of its range, so that it is below any bound with a
    probability that is right to 2**-9.

    Args:
        out: uint32[n], overwritten.
        noise: Where the numbers begin.

    Raises:
        TypeError: ``out`` is not a uint32 array.
        ValueError: ``out`` is not contiguous, or ``noise.start`` is out of range.
    """
    check_array("out", out, np.uint32, writable=True)
    check_noise(noise, out.size)
    if kernel := backend("philox", out):
        kernel.random_fractions(out, noise)
        return
    key = noise._asdict()
    element = np.uint64(key.pop("start")) + np.arange(out.size, dtype=np.uint64)
    row, index = np.divmod(element, np.uint64(ROW))
    part, column = np.divmod(index, np.uint64(ROW // 8))
    words = np.array(_words_of(row * np.uint64(ROW // 8) + column, **key))
    words = np.take_along_axis(words, (part // np.uint64(2)).astype(np.int64)[None], 0)[0]
    shift = np.uint64(9) * (part % np.uint64(2))
    out[:] = (words >> shift) & np.uint64(0x7FFFFF)


def check_noise(noise: Noise | None, size_elems: int) -> None:
    """Refuse a beginning of random numbers after which not every element has one of its own.

    Args:
        noise: Where they begin; None for none.
        size_elems: How many elements each take one.

    Raises:
        ValueError: ``noise.start`` is negative or too large.
    """
    if noise is not None and not 0 <= noise.start < 2**63 - size_elems - 16 * ROW:
        raise ValueError(f"noise.start must lie between 0 and 2**63 - n, not {noise.start}")


def philox4x32(
    counter: tuple[U64, U64, U64, U64], key: tuple[int, int], rounds: int = ROUNDS
) -> tuple[U64, U64, U64, U64]:
    """The bijection itself: words below 2**32, held in uint64, element by element.

    Args:
        counter: Four uint64 arrays of one shape.
        key: Two integers below 2**32.
        rounds: How often to mix.

    Returns:
        Four uint64 arrays with the words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (second >> _SHIFT) ^ c1 ^ np.uint64(k0), (first >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _WORD, first & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) % 2**32, (k1 + _KEY_STEPS[1]) % 2**32
    return c0, c1, c2, c3


def _words_of(
    block: U64, *, seed: int, stream: int, step: int, parameter: int
) -> tuple[U64, U64, U64, U64]:
    """The four words of each block of a stream."""
    fixed = [np.full_like(block, number % 2**32) for number in (step, parameter)]
    counter = block & _WORD, block >> _SHIFT, fixed[0], fixed[1]
    return philox4x32(counter, (seed % 2**32, stream % 2**32))
