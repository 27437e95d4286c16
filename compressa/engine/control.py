"""Control: a channel of its own for start-up digests, heartbeats and aborts.

It has its own process group, so that bulk data never stands in its way. Heartbeats are the
idle frames of its streams. The first abort that is recorded names the culprit: a rank that
fails because it lost another says so before it leaves, and is not blamed itself.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from compressa.collectives.base import Exchange
from compressa.engine.cores import Place
from compressa.engine.link_file import Shared
from compressa.errors import CompressaError, PayloadError, PeerLost, Timeout, TransportError
from compressa.transports.base import Key, Received
from compressa.transports.checks import CHECKSUMS, Keys
from compressa.transports.gloo import GlooTransport
from compressa.transports.mesh import has_left
from compressa.transports.streams import StreamSettings

_ABORT = Key(0xFFFFFFFF, 0, 0)
_PARTING = Key(0xFFFFFFFE, 0, 0)
_SIGNAL = Key(0xFFFFFFFD, 0, 0)
_ABORT_BYTES = 2048
_LENGTH_BYTES = 8
_MOST_BYTES = 1 << 26
_VERDICT_S = 0.5
_LOOK_S = 0.05


class Awaited:
    """Small messages that are under way.

    Args:
        control: Carries them.
        key: Their name.
        what: What messages of errors call them.
    """

    def __init__(self, control: Control, key: Key, what: str) -> None:
        self._control = control
        self._key = key
        self._what = what
        self._answer: list[Received | CompressaError] = []
        self._finished = threading.Event()

    def done(self, result: Received | CompressaError) -> None:
        """To be called once, from any thread, with what came."""
        self._answer.append(result)
        self._finished.set()

    def wait(self, deadline_s: float) -> Received:
        """Return what came, when all is here.

        Raises:
            Timeout: Some rank has sent nothing in time.
            PeerLost: Some rank is gone.
        """
        end_s = time.monotonic() + deadline_s
        while not self._finished.wait(_LOOK_S):
            self._control.look(self._what)
            if time.monotonic() > end_s:
                ranks = tuple(self._control.missing(self._key))
                who = ", ".join(map(str, ranks))
                raise Timeout(ranks, f"ranks {who} sent no {self._what} within {deadline_s:g} s")
        if isinstance(self._answer[0], CompressaError):
            raise self._answer[0]
        return self._answer[0]


class Control:
    """Small messages between all ranks.

    Args:
        group: A Gloo process group of its own.
        settings: Sizes and times of the streams.
        keys: Of this session.

    Attributes:
        keys: What further keys are made from.
        rank: This rank.
        size: Number of ranks.
        places: Where each rank runs, once all have said it.
        link: What is known of the network, once rank 0 has said it.
        epoch: That of the transport to come, once all have agreed on it.
    """

    def __init__(
        self, group: dist.ProcessGroup, settings: StreamSettings, keys: Keys = CHECKSUMS
    ) -> None:
        self.keys = keys
        self.rank = group.rank()
        self.size = group.size()
        self.places: list[Place] = []
        self.link = Shared()
        self.epoch = 0
        self._lock = threading.Lock()
        self._first: CompressaError | None = None
        self._settled = threading.Event()
        self._listener: Callable[[CompressaError], None] | None = None
        self._numbers = itertools.count()
        self._transport = GlooTransport(group, settings, _MOST_BYTES, self._record)
        for peer in self._peers:
            buffer = torch.zeros(_ABORT_BYTES, dtype=torch.uint8)
            self._transport.listen(peer, _ABORT, buffer, partial(self._heard, peer))

    @property
    def _peers(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def listen(self, listener: Callable[[CompressaError], None]) -> None:
        """Have `listener` called, from any thread, with the first failure."""
        with self._lock:
            self._listener = listener
            first = self._first
        if first is not None:
            listener(first)

    def all_gather(self, data: bytes, what: str, deadline_s: float) -> list[bytes]:
        """Bring every rank's bytes to every rank; blocks, within the deadline.

        All ranks must call it in the same order.

        Raises:
            Timeout: Some rank did not call it in time.
            PeerLost: Some rank is gone.
        """
        number = next(self._numbers)
        lengths = self._exchange(
            Key(number, 0, 0),
            _as_tensor(len(data).to_bytes(_LENGTH_BYTES, "little")),
            dict.fromkeys(self._peers, _LENGTH_BYTES),
            what,
            deadline_s,
        )
        sizes = {
            peer: int.from_bytes(_as_bytes(buffer), "little") for peer, buffer in lengths.items()
        }
        for peer, size in sizes.items():
            if size > _MOST_BYTES:
                raise PeerLost(peer, f"rank {peer} announced {size} bytes of {what}")
        parts = self._exchange(Key(number, 0, 1), _as_tensor(data), sizes, what, deadline_s)
        return [data if r == self.rank else _as_bytes(parts[r]) for r in range(self.size)]

    def exchange(
        self, outgoing: Mapping[int, bytes], most_bytes: Mapping[int, int], what: str
    ) -> Awaited:
        """Begin to send some ranks something, and to hear from some; does not block.

        All ranks must call this and `all_gather` in the same order.

        Args:
            outgoing: By rank that is sent to; not empty.
            most_bytes: How much may come, by rank that is heard from.
            what: What messages of errors call it.
        """
        data = {peer: _as_tensor(message) for peer, message in outgoing.items()}
        return self._start(Key(next(self._numbers), 0, 0), data, most_bytes, what)

    def signal(self, number: int) -> None:
        """Send every other rank a signal, for which it may wait already, or will; from any thread.

        Args:
            number: Each is sent once.
        """
        for peer in self._peers:
            self._transport.send(peer, _signal(number), _as_tensor(b"\0"), 0, lambda: None)

    def await_signal(self, peer: int, number: int, heard: Callable[[], None]) -> None:
        """Have a function called, from any thread, when a rank's signal has come."""
        buffer = torch.zeros(1, dtype=torch.uint8)
        self._transport.listen(peer, _signal(number), buffer, lambda _: heard())

    def verdict(self, error: CompressaError) -> CompressaError:
        """Say who is to blame for a failure, and tell the others.

        A failure of the network waits a moment for the reason, which a rank that gives up
        tells before it leaves. A failure of this rank's own is the reason.
        """
        if isinstance(error, TransportError):
            self._wait_for_reason(error)
        with self._lock:
            if self._first is None:
                self._first = self._blame(error)
            first = self._first
        self._abort(first)
        if isinstance(first, Timeout) and isinstance(error, TransportError):
            return error if isinstance(error, Timeout) else first
        return first if isinstance(first, PeerLost | PayloadError) else error

    def look(self, what: str) -> None:
        """Raise the first failure, if there is one, to whoever waits for something."""
        if self._first is not None:
            self._first.locate(f"rank {self.rank} waited for the others' {what}")
            raise self._first

    def missing(self, key: Key) -> Sequence[int]:
        """Return the ranks that something under way still waits for."""
        return self._transport.missing(key)

    def part(self, deadline_s: float) -> None:
        """Wait until every rank calls this, as the last thing before `close`; or is gone.

        A rank that goes on for longer than the deadline is no error.
        """
        with contextlib.suppress(CompressaError):
            sizes = dict.fromkeys(self._peers, 1)
            self._exchange(_PARTING, _as_tensor(b"\0"), sizes, "goodbye", deadline_s)

    def close(self, timeout_s: float) -> None:
        """Say goodbye and end the threads."""
        self._transport.close(timeout_s)

    def _exchange(
        self, key: Key, data: torch.Tensor, sizes: dict[int, int], what: str, deadline_s: float
    ) -> Received:
        awaited = self._start(key, dict.fromkeys(self._peers, data), sizes, what, exact=True)
        return awaited.wait(deadline_s)

    def _start(
        self,
        key: Key,
        outgoing: Mapping[int, torch.Tensor],
        most_bytes: Mapping[int, int],
        what: str,
        *,
        exact: bool = False,
    ) -> Awaited:
        incoming = {p: torch.zeros(size, dtype=torch.uint8) for p, size in most_bytes.items()}
        awaited = Awaited(self, key, what)
        self._transport.exchange(key, Exchange(outgoing, incoming, exact), 0, awaited.done)
        return awaited

    def _wait_for_reason(self, error: TransportError) -> None:
        end_s = time.monotonic() + _VERDICT_S
        while not self._settled.wait(0.02) and time.monotonic() < end_s:
            if isinstance(error, PeerLost) and error.rank in self._transport.gone:
                return

    def _blame(self, error: CompressaError) -> CompressaError:
        """A wait that fails after a rank has left fails because of it."""
        gone = min(self._transport.gone, default=None)
        if gone is None or not isinstance(error, TransportError):
            return error
        left = has_left(gone)
        left.__cause__ = error
        return left

    def _abort(self, error: CompressaError) -> None:
        culprit = error.rank if isinstance(error, PeerLost) else self.rank
        waited_for = list(error.ranks) if isinstance(error, Timeout) else None
        said: dict[str, Any] = {"rank": culprit, "reason": str(error)[:1000]}
        said |= {"waited_for": waited_for, "payload": isinstance(error, PayloadError)}
        text = json.dumps(said).encode()
        for peer in self._peers:
            if peer != culprit:
                self._transport.send(peer, _ABORT, _as_tensor(text), 0, lambda: None)

    def _heard(self, peer: int, data: torch.Tensor) -> None:
        """A peer gave up, and says why."""
        try:
            message = json.loads(_as_bytes(data))
            culprit, reason, payload = (
                int(message["rank"]),
                str(message["reason"]),
                message["payload"],
            )
            ranks = message["waited_for"]
            waited_for = None if ranks is None else tuple(map(int, ranks))
        except (ValueError, KeyError, TypeError):
            culprit, reason, waited_for = peer, "it sent an abort that cannot be read", None
            payload = False
        if payload:  # who was sent the wrong bytes is not to blame
            self._record(PayloadError(reason))
        elif waited_for is not None:  # who waits is not to blame
            self._record(Timeout(waited_for, reason))
        elif reason.startswith(f"rank {culprit} "):
            self._record(PeerLost(culprit, reason))
        else:
            self._record(PeerLost(culprit, f"rank {culprit} gave up: {reason}"))

    def _record(self, error: CompressaError) -> None:
        with self._lock:
            if self._first is not None:
                return
            self._first = error
            listener = self._listener
        self._settled.set()
        if listener is not None:
            listener(error)


def _signal(number: int) -> Key:
    return _SIGNAL._replace(unit=number & 0xFFFFFFFF)


def _as_tensor(data: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )


def _as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()
