"""The protocol between workers and servers, version 2, little-endian.

A worker tells a server what it is about to do by *requests*, which the server takes one by one, in
their order, and waits for as long as the worker lives:

    byte  0  u16  magic 0x7A73 ("sz")
    byte  2  u8   version
    byte  3  u8   kind: 1 push, 2 pull, 3 close, 4 meet
    byte  4  u32  epoch of the transport
    byte  8  u32  step, modulo 2^32
    byte 12  u32  number of keys
    byte 16  f32  of a push: the learning rate that its update was made by, else 1
    byte 20  u32  the number of each key

A push is followed by one payload for each of the keys' shards on that server (`ScopePayload`'s
header, which has the step, too; then what the codec writes). The first worker to announce a step
of a key starts the clock: the other workers owe theirs within the deadline. A pull is answered with
one payload for each shard, as soon as the step is complete.

Where there are time slots (`slots`), the server answers a push with a word for each shard: its time
in seconds (f64), and how many seconds later (f64) the worker may send that.

Steps of a key follow each other, and so do the pulls of a worker. A worker may run one step ahead
(`LEAD_STEPS`): it may push step t when it has the answer of step t - 2 or a later one. So a
server has at most two steps of a key under way, and remembers the last two that are complete,
which is all that may still be asked for. Both sides check that.

Where values are kept instead of sums (`centre`), a push has a worker's update; its step is the
worker's clock, and may skip some. The next push comes after the answer to it, so each worker has a
name for its pushes. The answer's header has the step that all workers have reached. A worker that
asks to meet is answered with the values themselves, when all have, as if to its next step.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

import torch

from compressa.errors import ConfigError, PayloadError, StateError
from compressa.parameter_server.keys import Shard

LEAD_STEPS = 1
"""How far a worker may push ahead of the step whose answer it has not got yet."""

REMEMBERED_STEPS = LEAD_STEPS + 1
"""How many complete steps of a key a server can still be asked for."""

MOST_AHEAD = 1 << 24
"""Steps of a worker from one update to the next, or from its own to those of others, at most."""

MAGIC = 0x7A73
VERSION = 2
_HEAD = struct.Struct("<HBBIIIf")
_STEPS = 1 << 32


class Kind(IntEnum):
    """What a worker is about to do."""

    PUSH = 1
    PULL = 2
    CLOSE = 3
    MEET = 4


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        kind: What it is for.
        epoch: Of the transport.
        step: Of the training; 0 to close.
        keys: Numbers of the keys.
        rate: Learning rate of an update, in float32.
    """

    kind: Kind
    epoch: int
    step: int = 0
    keys: tuple[int, ...] = ()
    rate: float = 1.0

    @staticmethod
    def most_bytes(keys: int) -> int:
        """Return the length of a request that names so many keys."""
        return _HEAD.size + 4 * keys

    def written(self) -> torch.Tensor:
        """Return it as uint8."""
        fields = (self.kind, self.epoch, self.step % _STEPS, len(self.keys), self.rate)
        head = _HEAD.pack(MAGIC, VERSION, *fields)
        text = head + struct.pack(f"<{len(self.keys)}I", *self.keys)
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)

    @classmethod
    def read(cls, data: torch.Tensor, epoch: int, sender: int) -> Request:
        """Read what has arrived.

        Args:
            data: uint8.
            epoch: The transport's.
            sender: Rank that sent it, for messages.

        Raises:
            PayloadError: It is no request, or of another epoch.
        """
        text = data.numpy().tobytes()
        if len(text) < _HEAD.size:
            raise PayloadError(f"rank {sender} sends a request of {len(text)} bytes")
        magic, version, kind, its_epoch, step, count, rate = _HEAD.unpack_from(text)
        if (magic, version) != (MAGIC, VERSION) or kind not in list(Kind):
            raise PayloadError(
                f"rank {sender} sends a request that begins with {magic:#06x}, version {version}, "
                f"kind {kind}"
            )
        if its_epoch != epoch or len(text) != cls.most_bytes(count):
            raise PayloadError(
                f"rank {sender} sends a request of epoch {its_epoch} and {len(text)} bytes that "
                f"names {count} keys, in epoch {epoch}"
            )
        if not 0 <= rate < math.inf:
            raise PayloadError(f"rank {sender} sends a request with a learning rate of {rate}")
        keys = struct.unpack_from(f"<{count}I", text, _HEAD.size)
        return cls(Kind(kind), epoch, step, keys, rate)


def unwrapped(wired: int, near: int) -> int:
    """Return the step that came as `wired` over the wire, of all that it may be the nearest one.

    Args:
        wired: The step, modulo 2^32.
        near: A step that is less than 2^31 steps away.

    Example:
        >>> unwrapped(1, 2**32 - 1) == 2**32 + 1
        True
    """
    half = _STEPS // 2
    return near + (wired - near + half) % _STEPS - half


@dataclass(frozen=True)
class Units:
    """Names for messages: the `unit` of their keys. No rank has two exchanges of one name.

    Attributes:
        shards: Number of shards.
        workers: Number of workers.
        servers: Number of servers.

    Raises:
        ConfigError: There are more than names.
    """

    shards: int
    workers: int
    servers: int

    def __post_init__(self) -> None:
        if self._turns < 4 * max(self.shards, self._pairs):  # no worker is so far ahead
            raise ConfigError(
                f"{self.shards} shards of keys for {self.workers} workers need more than 2^32 "
                "names of messages; use fewer keys or servers"
            )

    def push(self, shard: Shard) -> int:
        """Return the name of what each worker sends of a shard."""
        return shard.number

    def answer(self, shard: Shard, worker: int) -> int:
        """Return the name of what the server of a shard answers to a worker: the mean, encoded.

        Args:
            shard: The shard.
            worker: Number of the worker.
        """
        return self.shards + shard.number * self.workers + worker

    def update(self, shard: Shard, worker: int) -> int:
        """Return the name of what a worker sends of a shard whose values are kept.

        There are no slots then. Arguments are as of `answer`.
        """
        return self.slot(shard, worker)

    def slot(self, shard: Shard, worker: int) -> int:
        """Return the name of what the server tells a worker of its slot for a shard.

        Only where there are slots. Arguments are as of `answer`.
        """
        return self.shards * (1 + self.workers) + shard.number * self.workers + worker

    def request(self, worker: int, server: int, number: int) -> int:
        """Return the name of a request of a worker to a server.

        Args:
            worker: Number of the worker.
            server: Number of the server.
            number: How many requests there were between the two before; names come again, long
                after their messages are gone.
        """
        pair = worker * self.servers + server
        return self._first_request + number % self._turns * self._pairs + pair

    @property
    def _pairs(self) -> int:
        return self.workers * self.servers

    @property
    def _first_request(self) -> int:
        return self.shards * (1 + 2 * self.workers)

    @property
    def _turns(self) -> int:
        """After so many requests a name is used again; by then its message is long gone."""
        return (2**32 - self._first_request) // self._pairs


class Window:
    """What a worker has done with one key; see above for the rules.

    Args:
        key: The key's name.
        first_step: The first step that is pushed.

    Attributes:
        pushed: The last step that was pushed.
    """

    def __init__(self, key: str, first_step: int) -> None:
        self.pushed = first_step - 1
        self._key = key
        self._pulled = first_step - 1
        self._answered = first_step - 1
        self._asked: set[int] = set()

    def check_push(self, step: int) -> None:
        """Raise StateError unless a step may be pushed now."""
        if step != self.pushed + 1:
            raise StateError(
                f"key {self._key!r}: step {step} is pushed where step {self.pushed + 1} is due; "
                "push every step once, in their order"
            )
        oldest = step - LEAD_STEPS - 1
        if self._answered < oldest or min(self._asked, default=step) <= oldest:
            raise StateError(
                f"key {self._key!r}: step {step} is pushed before the answer to step {oldest} is "
                f"there; a worker may be {LEAD_STEPS} step ahead: pull that step, and wait for it"
            )

    def check_pull(self, step: int) -> None:
        """Raise StateError unless a step may be pulled now."""
        low = max(self._pulled, self.pushed - REMEMBERED_STEPS)
        if not low < step <= self.pushed:
            raise StateError(
                f"key {self._key!r}: step {step} can not be pulled: {self.pushed} was pushed last, "
                f"and {self._pulled} pulled last; pull one of the last {REMEMBERED_STEPS} steps "
                "that were pushed, each once, in their order"
            )

    def push(self, step: int) -> None:
        """Note that a step is pushed."""
        self.pushed = step

    def pull(self, step: int) -> None:
        """Note that a step is pulled."""
        self._pulled = step
        self._asked.add(step)

    def waited(self, step: int) -> None:
        """Note that the answer to a pull is there."""
        self._asked.discard(step)
        self._answered = max(self._answered, step)


class Updates:
    """What a worker has done with one key whose values are kept; see above for the rules.

    Args:
        key: The key's name.
        first_step: The first step that is pushed.

    Attributes:
        pushed: The last step that was pushed.
    """

    def __init__(self, key: str, first_step: int) -> None:
        self.pushed = self._answered = first_step - 1
        self._asked = False
        self._key = key

    def check_push(self, step: int) -> None:
        """Raise StateError unless a step may be pushed now."""
        if step <= self.pushed or self._answered < self.pushed:
            raise StateError(
                f"key {self._key!r}: step {step} is pushed, and step {self.pushed} "
                f"{'was' if step <= self.pushed else 'is not answered'}; push, pull and wait, "
                "and then push a later step"
            )

    def check_pull(self, step: int) -> None:
        """Raise StateError unless a step may be pulled now."""
        if step != self.pushed or self._answered == step or self._asked:
            raise StateError(
                f"key {self._key!r}: step {step} can not be pulled; pull each step that was "
                f"pushed, once ({self.pushed} was last)"
            )

    def push(self, step: int) -> None:
        """Note that a step is pushed."""
        self.pushed = step

    def pull(self, step: int) -> None:
        """Note that a step is pulled."""
        self._asked = True

    def waited(self, step: int) -> None:
        """Note that the answer to a pull is there, or that all have met after it."""
        self.restart(max(self.pushed, step))
        self._answered = step

    def restart(self, step: int) -> None:
        """Go on as if this step had been answered last."""
        self.pushed, self._answered, self._asked = step, step, False
