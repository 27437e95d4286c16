"""Channel: the control channel's connections, served by one thread for all peers.

Nothing on it blocks: a peer that takes nothing more keeps it neither from hearing the others nor
from giving them signs of life, however busy the data's own connections are. It looks a few times a
second at who has been silent for too long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch

from compressa.collectives.base import Exchange
from compressa.errors import CompressaError
from compressa.transports.base import Done, Key
from compressa.transports.reactor import Reactor
from compressa.transports.settings import Settings
from compressa.transports.silence import Absence, Hearing, silent
from compressa.transports.tcp import TcpTransport

_MOST_TICK_S = 0.25


class Channel:
    """Named messages between all ranks; every call is for any thread.

    Args:
        transport: The connections; closed with this object.
        settings: Theirs. Streams must be `alive`.

    Attributes:
        rank: This rank.
        size: Number of ranks.
    """

    def __init__(self, transport: TcpTransport, settings: Settings) -> None:
        self.rank, self.size = transport.rank, transport.size
        self._transport = transport
        self._settings = settings
        self._tick_s = min(_MOST_TICK_S, settings.heartbeat_s)
        self._hearing = Hearing(settings.silence_s, self._tick_s, time.monotonic())
        self._look_also: Callable[[], None] = lambda: None
        self._closing = threading.Event()
        self._reactor = Reactor()
        self._thread = threading.Thread(target=self._run, name="compressa-control")

    def start(self, look: Callable[[], None]) -> None:
        """Begin: the thread runs until `close`, or the end of the main thread.

        Args:
            look: Called a few times a second, on the channel's thread; it must block nowhere.
        """
        self._look_also = look
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Say goodbye to everyone and wait for theirs, also on the channel's own thread.

        Args:
            timeout_s: Longest wait of the caller; the thread goes on for up to `silence_s`.
        """
        self._reactor.post(self._closing.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # What is known of the others

    @property
    def peers(self) -> Iterable[int]:
        """All other ranks, also those that are gone."""
        return self._transport.inboxes.keys()

    @property
    def gone(self) -> frozenset[int]:
        """Peers that have said goodbye."""
        return self._transport.gone

    @property
    def lost(self) -> Mapping[int, CompressaError]:
        """Peers whose connection has failed, and how; not only the first."""
        return self._transport.lost

    @property
    def heard_s(self) -> Mapping[int, float]:
        """By peer that is still there, when something came from it last, of `time.monotonic`."""
        return self._transport.heard_s

    @property
    def absence(self) -> Absence | None:
        """When this process last did not run for a second or more; None if it always did.

        It may have come back just now.
        """
        return self._hearing.absence_by(time.monotonic())

    def missing(self, key: Key) -> Sequence[int]:
        """Return the ranks whose messages an unfinished exchange still waits for; else nobody."""
        return self._transport.missing(key)

    def report(self, error: CompressaError) -> None:
        """Report a failure to whoever the transport tells of failures, if it is the first."""
        self._transport.report(error)

    # Messages

    def send(self, peer: int, key: Key, data: torch.Tensor) -> None:
        """Send a message to a peer, who must be there: else its loss is reported.

        Args:
            peer: Rank.
            key: The message's name.
            data: uint8; must not change before it has left, which nobody is told.
        """
        self._reactor.post(partial(self._send, peer, key, data))

    def tell(self, peer: int, key: Key, data: torch.Tensor) -> None:
        """Send a message to a peer, unless it has left; as `send`."""

        def send() -> None:
            if peer not in self.gone:
                self._send(peer, key, data)

        self._reactor.post(send)

    def listen(
        self, peer: int, key: Key, buffer: torch.Tensor, arrived: Callable[[torch.Tensor], None]
    ) -> None:
        """Take a message that may never come.

        Args:
            peer: Who may send it.
            key: Its name.
            buffer: uint8, not empty; the most that it may have.
            arrived: Called with the filled front of `buffer`, on the channel's thread, or in this
                call if the message is here.

        Raises:
            PayloadError: It has come already and is longer than `buffer`.
        """
        self._transport.listen(peer, key, buffer, arrived)

    def exchange(self, key: Key, exchange: Exchange, done: Done) -> None:
        """Start an exchange.

        Args:
            key: Its name.
            exchange: What to send and receive.
            done: Called once, on the channel's thread, with what was received or the error.
        """

        def start() -> None:
            try:
                self._transport.exchange(key, exchange, 0, done)
            except CompressaError as error:
                self._transport.abandon(key)
                done(error)

        self._reactor.post(start)

    def abandon(self, key: Key) -> None:
        """Wait no longer for an exchange: its `done` is not called any more, or only just now."""
        self._reactor.post(partial(self._transport.abandon, key))

    def forget(self, unit: int, step: int) -> None:
        """Free what came, or did not, of a unit's exchanges in steps up to this one.

        None of it may still be on its way. See `Inbox.forget`.
        """
        self._reactor.post(partial(self._transport.forget, unit, step))

    # On the thread

    def _send(self, peer: int, key: Key, data: torch.Tensor) -> None:
        self._transport.send(peer, key, data, 0, lambda: None)

    def _run(self) -> None:
        with contextlib.closing(self._reactor):
            self._transport.attach(self._reactor)
            self._beat()
            self._look()
            # A program that ends without closing must not wait for this thread for ever.
            while not self._closing.is_set() and threading.main_thread().is_alive():
                self._reactor.run_once(self._tick_s)
            self._closing.set()
            self._reactor.run_once(0.0)
            self._transport.close(self._settings.silence_s)

    def _beat(self) -> None:
        self._transport.beat()
        self._again(self._settings.heartbeat_s, self._beat)

    def _look(self) -> None:
        for peer in self._hearing.look(time.monotonic(), self.heard_s):
            self._transport.link_failed(silent(peer, self._settings.silence_s))
        self._look_also()
        self._again(self._tick_s, self._look)

    def _again(self, seconds: float, event: Callable[[], None]) -> None:
        if not self._closing.is_set():
            self._reactor.call_at(time.monotonic() + seconds, event)
