"""Slots: the workers of a server send one after the other, so that its port's queue stays short.

All workers push at about the same time, and together send more than a server's port takes: its
queue overflows, and what is lost is sent again (incast). With slots, each shard is a round, in
which every worker has a slot as long as its payload needs at the port's rate. When the first worker
announces a push, the server plans the round behind those before it; the j-th to announce it gets
the j-th slot, and is told how long to wait. So the port is as busy as before, all slots are on the
server's clock, and nobody waits for a worker that is late: that one may send at once.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable

import torch

from compressa.errors import PayloadError
from compressa.schedulers import Link
from compressa.schedulers.staggered import slots

_WORD = struct.Struct("<dd")
WORD_BYTES = _WORD.size
_WAY, _MOST_WAY_S = 0.5, 0.005  # part of a slot for a word's way to a worker, if the port is free
_DRIFT = 1e-4  # by which clocks may differ in their rates
_BITS = 8
_PAYLOAD = 0.94  # of what a port carries: headers of frames of 1,500 bytes, and acknowledgements


def write_word(now_s: float, wait_s: float) -> torch.Tensor:
    """Return what tells a worker of its slot: the server's time, and how long after it to begin."""
    return torch.frombuffer(bytearray(_WORD.pack(now_s, wait_s)), dtype=torch.uint8)


class ServerTime:
    """A server's clock, as a worker knows it from words.

    A word that waited in a queue comes late, and what it says would be late, too. The one that took
    the shortest way tells how the clocks differ. If a slot has begun all the same, those after it
    in the step are put off by as much: to make up for it would fill the queue until the step ends.

    Args:
        server: The server's rank.
        most_s: The longest wait for a slot that makes sense.
    """

    def __init__(self, server: int, most_s: float) -> None:
        self._server, self._most_s = server, most_s
        self._ahead_s = math.inf  # of the worker's clock, and the shortest way
        self._heard_s = 0.0
        self._step, self._late_s = -1, 0.0

    def begin_s(self, step: int, word: torch.Tensor, now_s: float) -> float:
        """Return when a slot begins, on the worker's clock.

        Args:
            step: That the slot is for.
            word: What came.
            now_s: When it came.

        Raises:
            PayloadError: It is none, or the slot is too far away.
        """
        sent_s, wait_s = _WORD.unpack(word.numpy().tobytes())
        if not (math.isfinite(sent_s) and 0 <= wait_s <= self._most_s):
            raise PayloadError(f"rank {self._server} gives a slot that begins in {wait_s} s")
        drifted_s = self._ahead_s + _DRIFT * (now_s - self._heard_s)
        self._ahead_s, self._heard_s = min(drifted_s, now_s - sent_s), now_s
        if step != self._step:
            self._step, self._late_s = step, 0.0
        due_s = self._ahead_s + float(sent_s + wait_s)
        self._late_s = max(self._late_s, now_s - due_s)
        return due_s + self._late_s


class Slots:
    """The rounds of one server.

    Args:
        server_bits_per_s: Rate of the server's port.
        workers: How many workers send to it.
        now_s: Tells the time.

    Example:
        >>> slots = Slots(8e6 / 0.94, workers=2, now_s=lambda: 100.0)
        >>> [round(slots.wait_s(0, shard, 1_000_000), 6) for shard in (0, 0, 1)]
        [0.005, 1.005, 2.005]
    """

    def __init__(self, server_bits_per_s: float, workers: int, now_s: Callable[[], float]) -> None:
        self._link = Link(bytes_per_s=server_bits_per_s * _PAYLOAD / _BITS)
        self._workers, self._now_s = workers, now_s
        self._free_s = -math.inf  # when the last round that was planned ends
        self._rounds: dict[tuple[int, int], deque[float]] = {}  # begins of slots that are left

    def wait_s(self, step: int, shard: int, size_bytes: int) -> float:
        """Give a worker its slot in a round.

        Args:
            step: Step of the push, which each worker announces once.
            shard: Number of the shard.
            size_bytes: Of its payload, at most.

        Returns:
            In how many seconds the slot begins.
        """
        now_s, name = self._now_s(), (step, shard)
        if name not in self._rounds:
            self._rounds[name] = self._planned(now_s, size_bytes)
        left = self._rounds[name]
        begin_s = left.popleft()
        if not left:
            del self._rounds[name]
        return max(0.0, begin_s - now_s)

    def _planned(self, now_s: float, size_bytes: int) -> deque[float]:
        planned = slots([size_bytes] * self._workers, self._link)
        way_s = min(planned[0].end_s * _WAY, _MOST_WAY_S)
        first_s = self._free_s if self._free_s > now_s else now_s + way_s
        self._free_s = first_s + planned[-1].end_s
        return deque(first_s + slot.start_s for slot in planned)
