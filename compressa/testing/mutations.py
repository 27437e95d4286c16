"""Mutator: what a broken or malicious peer may make of a valid payload.

Bits are flipped, bytes and words set to values that hurt (counts that are too large by one or by
far, NaN and infinite scales), fronts and ends cut off or drawn out, two payloads spliced, parts
repeated, everything zero, one or random. Fields of headers and lengths get more than their share:
every second index lies in the first or last bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_EDGE_BYTES = 24  # a unit's header, and where a codec's own would be
_DRAWN_AT_ONCE = 4096
_FLOATS = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -0.0, 1.0)
_COUNTS = (0, 1, 2, 7, 8, 9, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 1 << 16, (1 << 31) - 1, 1 << 31)
_FLOAT_WORDS = tuple(np.array(_FLOATS, np.float32).view(np.uint32).tolist())
_WORDS = (*_COUNTS, 0xFFFFFFFE, 0xFFFFFFFF)


class Mutator:
    """Writes mutations of payloads; the same seed gives the same ones.

    Args:
        seed: Of a generator of its own.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._drawn: list[int] = []
        self._ways: tuple[Callable[[Bytes, int, Bytes], int], ...] = (
            self._flip_bits,
            self._flip_bits,
            self._set_bytes,
            lambda room, length, other: self.poison(room, length),
            lambda room, length, other: self.poison(room, length),
            lambda room, length, other: self.set_word(room, length),
            lambda room, length, other: self.set_word(room, length),
            self._shift_word,
            self._repeat,
            self._splice,
            self._cut,
            self._extend,
            self._fill,
        )

    def below(self, bound: int) -> int:
        """Draw a number from 0 to `bound` - 1."""
        if not self._drawn:
            self._drawn = self._random.integers(0, 1 << 62, _DRAWN_AT_ONCE).tolist()
        return self._drawn.pop() % bound

    def mutate(self, payload: Bytes, other: Bytes, room: Bytes) -> int:
        """Write a mutation to the front of `room`.

        Args:
            payload: Valid bytes.
            other: Other valid bytes, to splice with.
            room: Longer than both.

        Returns:
            Its length in bytes.
        """
        length = payload.size
        room[:length] = payload
        for _ in range(1 if self.below(4) else 2):
            length = self._ways[self.below(len(self._ways))](room, length, other)
        return length

    def set_word(self, room: Bytes, length: int) -> int:
        """Set one word to a number that would hurt as a count or an index; return the length.

        Args:
            room: uint8; its first `length` bytes are the payload.
            length: Unchanged if less than 4.
        """
        if length >= 4:
            values = (*_WORDS, length, length - 1, length + 1, self.below(1 << 32))
            self._write(room, self._word(length), values[self.below(len(values))])
        return length

    def poison(self, room: Bytes, length: int) -> int:
        """Set one word to a float32 that would hurt as a scale; return the length.

        Args:
            room: uint8; its first `length` bytes are the payload.
            length: Unchanged if less than 4.
        """
        if length >= 4:
            self._write(room, self._word(length), _FLOAT_WORDS[self.below(len(_FLOAT_WORDS))])
        return length

    def _index(self, length: int) -> int:
        edge = min(length, _EDGE_BYTES)
        near = self.below(4)
        if near == 0:
            return self.below(edge)
        return length - 1 - self.below(edge) if near == 1 else self.below(length)

    def _flip_bits(self, room: Bytes, length: int, other: Bytes) -> int:
        for _ in range(1 + self.below(6) if length else 0):
            room[self._index(length)] ^= 1 << self.below(8)
        return length

    def _set_bytes(self, room: Bytes, length: int, other: Bytes) -> int:
        for _ in range(1 + self.below(4) if length else 0):
            room[self._index(length)] = (0, 1, 0x7F, 0x80, 0xFF, self.below(256))[self.below(6)]
        return length

    def _shift_word(self, room: Bytes, length: int, other: Bytes) -> int:
        if length >= 4:
            at = self._word(length)
            value = int.from_bytes(room[at : at + 4].tobytes(), "little")
            self._write(room, at, value + self.below(17) - 8)
        return length

    def _repeat(self, room: Bytes, length: int, other: Bytes) -> int:
        if length:
            size = 1 + self.below(min(length, 8))
            source, target = self.below(length - size + 1), self.below(length - size + 1)
            room[target : target + size] = room[source : source + size].copy()
        return length

    def _splice(self, room: Bytes, length: int, other: Bytes) -> int:
        at = self.below(min(length, other.size) + 1)
        room[at : other.size] = other[at:]
        return other.size

    def _cut(self, room: Bytes, length: int, other: Bytes) -> int:
        few = min(length, 1 + self.below(9))
        return length - few if self.below(2) else self.below(length + 1)

    def _extend(self, room: Bytes, length: int, other: Bytes) -> int:
        left = room.size - length
        more = min(left, 1 + self.below(9 if self.below(2) else max(left, 1)))
        self._paint(room[length : length + more])
        return length + more

    def _fill(self, room: Bytes, length: int, other: Bytes) -> int:
        start = 0 if self.below(2) else self.below(length + 1)
        self._paint(room[start:length])
        return length

    def _paint(self, part: Bytes) -> None:
        way = self.below(3)
        if way == 2:
            part[:] = self._random.integers(0, 256, part.size, np.uint8)
        else:
            part[:] = (0x00, 0xFF)[way]

    def _word(self, length: int) -> int:
        """Where a word begins: mostly on a multiple of 4, and often at the front."""
        if self.below(6) == 0:
            return 0
        at = min(self._index(length), length - 4)
        return at // 4 * 4 if self.below(4) else at

    @staticmethod
    def _write(room: Bytes, at: int, value: int) -> None:
        room[at : at + 4] = np.frombuffer((value % (1 << 32)).to_bytes(4, "little"), np.uint8)
