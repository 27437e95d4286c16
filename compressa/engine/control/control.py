"""Control: a channel of its own for start-up digests, heartbeats and verdicts.

It has its own connections and a thread of its own, so that bulk data never stands in its way
(`compressa.engine.control.channel`). Collective calls are named by their purpose and the number of
the attempt (`compressa.engine.control.attempts`). Each rank can say what it is doing
(`compressa.engine.control.waits`), and when something fails, all raise one verdict
(`compressa.engine.control.verdicts`).
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from compressa.collectives.base import Exchange
from compressa.engine.control.attempts import Attempts
from compressa.engine.control.awaited import AHEAD_S, LOOK_S, Awaited, Withdrawn
from compressa.engine.control.channel import Channel
from compressa.engine.control.deferred_error import DeferredError
from compressa.engine.control.inquest import cause_of_timeout, heard, told
from compressa.engine.control.long_waits import LongWaits
from compressa.engine.control.notes import Notes, as_bytes, as_tensor
from compressa.engine.control.verdicts import Verdicts
from compressa.engine.control.waits import Activity, Cause, Doing, Wait, names
from compressa.engine.start.cores import Host
from compressa.engine.start.link_file import AgreedLink
from compressa.errors import CompressaError, PeerLost, Timeout
from compressa.transports.base import Key, Received
from compressa.transports.checks import CHECKSUMS, Keys
from compressa.transports.settings import Settings
from compressa.transports.tcp import TcpTransport

_PARTING = Key(0xFFFFFFFE, 0, 0)
_SIGNAL = Key(0xFFFFFFFD, 0, 0)
_LENGTH_BYTES = 8
_MOST_BYTES = 1 << 26
_ANSWERS_S = 0.4  # for the others to say what they are doing


class Control:
    """Small messages between all ranks; its calls are for any thread.

    Args:
        rank: This rank.
        sockets: Connected to every other rank; owned from now on.
        settings: Sizes and times of the connections.
        keys: Of this session.

    Attributes:
        keys: What further keys are made from.
        rank: This rank.
        size: Number of ranks.
        hosts: Where each rank runs, once all have said it.
        link: What is known of the network, once rank 0 has said it.
        epoch: That of the transport to come, once all have agreed on it.
    """

    def __init__(
        self,
        rank: int,
        sockets: Mapping[int, Sequence[socket.socket]],
        settings: Settings,
        keys: Keys = CHECKSUMS,
    ) -> None:
        self.keys = keys
        self.rank = rank
        self.size = len(sockets) + 1
        self.hosts: list[Host] = []
        self.link = AgreedLink()
        self.epoch = 0
        self._attempts = Attempts()
        self._waited_for: dict[Key, Awaited] = {}
        self._doing = Doing("at the start")
        self._describe: Callable[[], Activity] = self._doing.activity
        self._deadline_s, self._prepared_s = math.inf, -math.inf
        self._explained: Timeout | None = None
        failed = DeferredError()
        transport = TcpTransport(rank, sockets, settings, _MOST_BYTES, failed)
        self._channel = Channel(transport, settings)
        self._notes = Notes(self._channel)
        self._verdicts = Verdicts(self._channel, self._notes, settings, self.activity)
        own = {"withdrawn": self._heard_of_withdrawal, "stuck": self._heard_of_cycle}
        self._notes.take({**self._verdicts.takers, **own})
        failed.connect(self._verdicts.fail)
        waits = LongWaits(self.rank, self._verdicts.ask, self._verdicts.answers, self._stuck)
        self._channel.start(partial(self._look_at, waits))

    @property
    def _peers(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def listen(self, listener: Callable[[CompressaError], None]) -> None:
        """Have `listener` called, from any thread, with the verdict; now, if there is one."""
        self._verdicts.listen(listener)

    def describe(self, activity: Callable[[], Activity], deadline_s: float = math.inf) -> None:
        """Have a function say what this rank is doing but for calls of this; from any thread.

        Args:
            activity: The function; called from any thread, and must block nowhere.
            deadline_s: When its waits end: a moment before, all tell each other what they do.
        """
        self._describe, self._deadline_s = activity, deadline_s

    def activity(self) -> Activity:
        """Return what this rank is doing; from any thread."""
        beside = self._describe()
        called = [a for a in list(self._waited_for.values()) if a.waited_since_s is not None]
        if not called:
            return beside
        waits = tuple(a.description(self._channel.missing(a.key)) for a in called)
        doing = f"in {called[0].purpose}"
        return Activity(doing, waits[0].seconds, True, (*waits, *beside.waits))

    def all_gather(self, data: bytes, what: str, deadline_s: float) -> list[bytes]:
        """Bring every rank's bytes to every rank; blocks, within the deadline.

        All ranks must call it, in the same order for one purpose. If a rank gives up, only this
        call has failed: who comes later waits for its next one.

        Args:
            data: This rank's; at most 64 MiB.
            what: The purpose, by which calls of all ranks belong together; for people, too.
            deadline_s: Longest wait, in seconds.

        Returns:
            By rank, its bytes.

        Raises:
            Timeout: Some rank did not call it in time; says what the ranks are doing instead.
            PeerLost: Some rank is gone.
            CompressaError: The session has failed; the verdict.
        """
        end_s = time.monotonic() + deadline_s
        while True:
            try:
                return self._gather(data, what, self._attempts.begin(what), end_s, deadline_s)
            except Withdrawn:
                continue

    def exchange(
        self, outgoing: Mapping[int, bytes], most_bytes: Mapping[int, int], what: str
    ) -> Awaited:
        """Begin to send some ranks something, and to hear from some; does not block.

        All ranks must call it, in the same order for one purpose.

        Args:
            outgoing: By rank that is sent to; not empty.
            most_bytes: How much may come, by rank that is heard from.
            what: The purpose, by which calls of all ranks belong together; for people, too.

        Returns:
            What `Awaited.wait` is called of, for what came.
        """
        data = {peer: as_tensor(message) for peer, message in outgoing.items()}
        number = self._attempts.begin(what)
        return self._start(_key(what, number, 0), data, most_bytes, what)

    def signal(self, number: int) -> None:
        """Send every other rank a signal, for which it may wait already, or will; never blocks.

        Args:
            number: Each is sent once; modulo 2^32.
        """
        for peer in self._peers:
            self._channel.send(peer, _signal(number), as_tensor(b"\0"))

    def await_signal(self, peer: int, number: int, heard: Callable[[], None]) -> None:
        """Have a function called when a rank's signal has come.

        Args:
            peer: The rank.
            number: Of its signal; to be asked for once.
            heard: Called once, on the channel's thread, or in this call if the signal is here.
        """
        buffer = torch.zeros(1, dtype=torch.uint8)
        self._channel.listen(peer, _signal(number), buffer, lambda _: heard())

    def verdict(self, error: CompressaError) -> CompressaError:
        """Return what all ranks raise because of a failure here, and tell the others.

        Blocks for a second at most, or up to 3 s more where a message takes long; see
        `Verdicts.verdict`.
        """
        return self._verdicts.verdict(error, explained=error is self._explained)

    def look(self, what: str) -> None:
        """Raise the first failure, if there is one, to whoever waits for something.

        Args:
            what: That, for the message.

        Raises:
            CompressaError: The verdict.
        """
        first = self._verdicts.first
        if first is not None:
            first.locate(f"rank {self.rank} waited for the others' {what}")
            raise first

    def part(self, deadline_s: float) -> None:
        """Wait until every rank calls this, as the last thing before `close`; or is gone.

        Raises nothing: a rank that goes on for longer is no error.

        Args:
            deadline_s: Longest wait, in seconds.
        """
        sizes = dict.fromkeys(self._peers, 1)
        outgoing = dict.fromkeys(self._peers, as_tensor(b"\0"))
        end_s = time.monotonic() + deadline_s
        with contextlib.suppress(CompressaError, Withdrawn):
            awaited = self._start(_PARTING, outgoing, sizes, "goodbye", exact=True)
            awaited.wait(deadline_s, over=lambda: time.monotonic() > end_s)

    def close(self, timeout_s: float) -> None:
        """Say goodbye and end the thread; later, if others take longer.

        Args:
            timeout_s: Longest wait of the caller, in seconds.
        """
        self._verdicts.close()
        self._channel.close(timeout_s)

    # For calls under way

    def withdraw(self, awaited: Awaited, *, told: bool) -> None:
        """Wait no longer for a call; tell the others, unless they have been told.

        Args:
            awaited: The call; what comes of it later is passed over.
            told: Whether another rank has withdrawn it, so that all know.
        """
        self._waited_for.pop(awaited.key, None)
        self._channel.abandon(awaited.key)
        if told or awaited.key == _PARTING:
            return
        number = awaited.key.step
        self._attempts.withdraw(awaited.purpose, number)
        self._notes.send_all("withdrawn", {"purpose": awaited.purpose, "attempt": number})

    def ask(self) -> float:
        """Ask all others what they are doing; return the time, of `time.monotonic`."""
        return self._verdicts.ask()

    def explained(self, awaited: Awaited, deadline_s: float, since_s: float) -> Timeout:
        """Return why a call has taken longer than its deadline, by what the others are doing.

        Waits 0.4 s at most for their answers.

        Args:
            awaited: The call.
            deadline_s: What it was given, for the message.
            since_s: What they have said since this time of `time.monotonic` counts, if they do not
                answer again.
        """
        ranks = tuple(self._channel.missing(awaited.key))
        text = (
            f"rank {self.rank} waited {deadline_s:g} s in {awaited.purpose} for {names(ranks)}, "
            "where all ranks must call it"
        )
        asked_s = self._verdicts.ask()
        end_s = asked_s + _ANSWERS_S
        while not self._verdicts.answered(asked_s) and time.monotonic() < end_s:
            time.sleep(LOOK_S / 5)
        answers = self._verdicts.answers(min(since_s, asked_s))
        if awaited.stuck is not None:  # another rank of the cycle was first, and may have gone on
            return awaited.stuck
        cause = cause_of_timeout(Timeout(ranks, text), answers, self.rank)
        self._explained = Timeout(ranks, text)
        if cause is not None:
            self._explained = Timeout(cause.ranks, f"{text}; {cause.text}")
            self._end_cycle(cause, self._explained, answers)
        return self._explained

    def _gather(
        self, data: bytes, what: str, number: int, end_s: float, deadline_s: float
    ) -> list[bytes]:
        def exchange(stage: int, own: torch.Tensor, sizes: Mapping[int, int]) -> Received:
            outgoing = dict.fromkeys(self._peers, own)
            awaited = self._start(_key(what, number, stage), outgoing, sizes, what, exact=True)
            left_s = end_s - time.monotonic()
            over = partial(self._attempts.is_withdrawn, what, number)
            return awaited.wait(left_s, over, deadline_s)

        own = as_tensor(len(data).to_bytes(_LENGTH_BYTES, "little"))
        lengths = exchange(0, own, dict.fromkeys(self._peers, _LENGTH_BYTES))
        sizes = {p: int.from_bytes(as_bytes(length), "little") for p, length in lengths.items()}
        for peer, size in sizes.items():
            if size > _MOST_BYTES:
                raise PeerLost(peer, f"rank {peer} announced {size} bytes of {what}")
        parts = exchange(1, as_tensor(data), sizes)
        # What came of earlier attempts has come before.
        self._channel.forget(_key(what, number, 0).unit, number)
        return [data if r == self.rank else as_bytes(parts[r]) for r in range(self.size)]

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
        awaited = self._waited_for[key] = Awaited(self, key, what)

        def done(result: Received | CompressaError) -> None:
            self._waited_for.pop(key, None)
            awaited.done(result)

        self._channel.exchange(key, Exchange(outgoing, incoming, exact), done)
        return awaited

    def _heard_of_withdrawal(self, peer: int, note: Mapping[str, Any]) -> None:
        self._attempts.withdraw(str(note["purpose"]), int(note["attempt"]))

    def _look_at(self, waits: LongWaits) -> None:
        now_s, activity = time.monotonic(), self.activity()
        waits.look(now_s, activity)
        longest_s = max((wait.seconds for wait in self._describe().waits), default=0.0)
        if longest_s > self._deadline_s - AHEAD_S and now_s > self._prepared_s + AHEAD_S:
            self._prepared_s = now_s
            self._verdicts.prepare()

    def _stuck(self, wait: Wait, cause: Cause, answers: Mapping[int, Activity]) -> None:
        """A wait never ends: calls give up, so that those who wait for these ranks can go on."""
        text = (
            f"rank {self.rank} waits in {wait.what} for {names(wait.ranks)}, in vain, since each "
            f"waits for the next in another call: {cause.text}"
        )
        self._end_cycle(cause, Timeout(cause.ranks, text), answers)

    def _end_cycle(self, cause: Cause, error: Timeout, answers: Mapping[int, Activity]) -> None:
        """Have all calls of a cycle of waits give up, if it is one, with the same error."""
        if not cause.stuck:
            return
        waits = [wait for rank in cause.ranks for wait in answers[rank].waits]
        note = {**told(error, self.rank), "operations": [wait.operation for wait in waits]}
        for rank in cause.ranks:
            if rank != self.rank:
                self._notes.send(rank, "stuck", note)
        self._heard_of_cycle(self.rank, note)

    def _heard_of_cycle(self, peer: int, note: Mapping[str, Any]) -> None:
        error = heard(note, self.size)
        for awaited in list(self._waited_for.values()):
            if awaited.operation in note["operations"] and isinstance(error, Timeout):
                awaited.stuck = error


def _key(purpose: str, attempt: int, stage: int) -> Key:
    return Key(attempt, zlib.crc32(purpose.encode()), stage)


def _signal(number: int) -> Key:
    return _SIGNAL._replace(unit=number & 0xFFFFFFFF)
