"""Slots: the workers of a server send one after the other, so that its port's queue stays short.

All workers push at about the same time, and together send more than a server's port takes: its
queue overflows, and what is lost is sent again (incast). With slots, each shard is a round, in
which every worker has a slot as long as its payload needs at the port's rate. Rounds come in the
order in which they were first announced, and within a round workers as they announce it. While a
worker is missing, those of the next rounds get theirs only when the port would be idle otherwise;
when all are there, everything is given at once. So the port is as busy as before, nobody waits for
a worker that is late, and that one takes nobody's slot.

A worker is told on the server's clock how long to wait, early enough for the word to come in time:
packets of answers to other workers may be before it.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from compressa.errors import PayloadError
from compressa.schedulers import Link

Give = Callable[[float], None]
"""(wait_s): tells a worker how long to wait for its slot."""

_WORD = struct.Struct("<dd")
WORD_BYTES = _WORD.size
# For a word's way to a worker, alone and behind packets of answers: parts of a slot, and seconds.
_WAY, _MOST_WAY = (0.5, 0.005), (1.5, 0.01)
_DRIFT = 1e-4  # by which clocks may differ in their rates
_BITS = 8
_PAYLOAD = 0.94  # of what a port carries: headers of frames of 1,500 bytes, and acknowledgements


def write_word(now_s: float, wait_s: float) -> torch.Tensor:
    """Return what tells a worker of its slot, uint8[16].

    Args:
        now_s: The server's time.
        wait_s: How long after it to begin.
    """
    return torch.frombuffer(bytearray(_WORD.pack(now_s, wait_s)), dtype=torch.uint8)


class ServerTime:
    """A server's clock, as a worker knows it from words.

    A word that waited in a queue comes late, and what it says would be late, too. The one that took
    the shortest way tells how the clocks differ.

    Args:
        server: The server's rank.
        most_s: The longest wait for a slot that makes sense.
    """

    def __init__(self, server: int, most_s: float) -> None:
        self._server, self._most_s = server, most_s
        self._ahead_s = math.inf  # of the worker's clock, and the shortest way
        self._heard_s = 0.0

    def begin_s(self, word: torch.Tensor, now_s: float) -> float:
        """Return when a slot begins, or has begun, on the worker's clock.

        Args:
            word: What came, uint8[16], from `write_word`.
            now_s: When it came, on the worker's clock.

        Raises:
            PayloadError: It is none, or the slot is too far away.
        """
        sent_s, wait_s = _WORD.unpack(word.numpy().tobytes())
        if not (math.isfinite(sent_s) and 0 <= wait_s <= self._most_s):
            raise PayloadError(f"rank {self._server} gives a slot that begins in {wait_s} s")
        drifted_s = self._ahead_s + _DRIFT * (now_s - self._heard_s)
        self._ahead_s, self._heard_s = min(drifted_s, now_s - sent_s), now_s
        return self._ahead_s + float(sent_s + wait_s)


class _Asked(NamedTuple):
    """A worker's wish for a slot."""

    length_s: float
    give: Give


@dataclass
class _Round:
    """One shard's slots of one step.

    Attributes:
        missing: How many workers have not asked for theirs.
        waiting: What was asked for and not given yet, in the order in which it was.
    """

    missing: int
    waiting: deque[_Asked] = field(default_factory=deque)


class Slots:
    """Shares the port of one server out.

    Args:
        server_bits_per_s: Rate of the port.
        workers: How many workers send to it.
        now_s: Tells the time.
        call_at: Has a function called at a time.

    Example:
        >>> slots = Slots(8e6 / 0.94, 2, lambda: 100.0, lambda time_s, function: None)
        >>> waits_s = []
        >>> for shard in (0, 1, 0, 1):
        ...     slots.ask(0, shard, 1_000_000, waits_s.append)
        >>> [round(wait_s, 6) for wait_s in waits_s]
        [0.005, 1.005, 2.005, 3.005]
    """

    def __init__(
        self,
        server_bits_per_s: float,
        workers: int,
        now_s: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._link = Link(bytes_per_s=server_bits_per_s * _PAYLOAD / _BITS)
        self._workers = workers
        self._now_s, self._call_at = now_s, call_at
        self._free_s = -math.inf  # when the last slot that was given ends
        self._answers_s = -math.inf  # when the server's answers have left
        self._rounds: dict[tuple[int, int], _Round] = {}  # in the order of their first workers
        self._watched = False

    def ask(self, step: int, shard: int, size_bytes: int, give: Give) -> None:
        """Take a worker's wish for a slot in a round.

        Args:
            step: Step of the push, which each worker announces once.
            shard: Number of the shard.
            size_bytes: Of its payload, at most.
            give: Called once, now or later, with the seconds from then until the slot begins.
        """
        round_ = self._rounds.setdefault((step, shard), _Round(self._workers))
        round_.missing -= 1
        round_.waiting.append(_Asked(self._link.wire_s(size_bytes), give))
        self._give_first_rounds()
        self._watch()

    def note_answer(self, size_bytes: int) -> None:
        """Note that the server sends so much: so long a word that is sent after it may wait."""
        self._answers_s = max(self._answers_s, self._now_s()) + self._link.wire_s(size_bytes)

    def _way_s(self, asked: _Asked) -> float:
        """Return how long before its begin a slot must be given."""
        least_s, most_s = (min(slot * asked.length_s, s) for slot, s in (_WAY, _MOST_WAY))
        return min(max(self._answers_s - self._now_s(), least_s), most_s)

    def _give_first_rounds(self) -> None:
        """Give what nobody who may still ask comes before."""
        while self._rounds:
            name, round_ = next(iter(self._rounds.items()))
            while round_.waiting:
                self._give(round_.waiting.popleft())
            if round_.missing:
                return
            del self._rounds[name]

    def _give(self, asked: _Asked) -> None:
        now_s = self._now_s()
        begin_s = max(self._free_s, now_s + self._way_s(asked))
        self._free_s = begin_s + asked.length_s
        asked.give(begin_s - now_s)

    def _watch(self) -> None:
        """Look at those who wait when the port is about to be idle."""
        round_ = self._first_waiting()
        if round_ is not None and not self._watched:
            self._watched = True
            self._call_at(self._free_s - self._way_s(round_.waiting[0]), self._fill)

    def _fill(self) -> None:
        """Give the next slot before its turn, if the port would be idle otherwise."""
        self._watched = False
        round_ = self._first_waiting()
        if round_ is not None and self._free_s - self._way_s(round_.waiting[0]) <= self._now_s():
            self._give(round_.waiting.popleft())
        self._watch()

    def _first_waiting(self) -> _Round | None:
        return next((round_ for round_ in self._rounds.values() if round_.waiting), None)
