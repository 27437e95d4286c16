"""Loop: the sockets and memory of what a transport has compiled code do, and who drives it.

One thread at a time drives: it waits in compiled code for sockets and goes on with what has come,
until a program is done. Mostly that is the communication thread, which waits there for all else as
well. A blocking call drives on its own thread, where nothing else is under way: it is over when the
last message is, and no thread has to wake another.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from compressa.collectives.base import Exchange
from compressa.collectives.lowering import Table
from compressa.collectives.region import Region
from compressa.errors import CompressaError, StateError
from compressa.transports.base import Done, Key, OnCome, OnSent
from compressa.transports.lowered import _words as w
from compressa.transports.lowered._drive import (
    FAILED,
    NOTHING,
    PROGRAM_DONE,
    begin,
    call,
    drive,
    forget,
    let_go,
    take_over,
)
from compressa.transports.lowered._memory import address_of, words
from compressa.transports.lowered.bucket import pace
from compressa.transports.lowered.compile import prepare
from compressa.transports.lowered.digests import authenticate
from compressa.transports.lowered.failure import failure
from compressa.transports.lowered.fence import Fence, Fences
from compressa.transports.lowered.links import join, make_room
from compressa.transports.lowered.messages import Messages, shape_of
from compressa.transports.lowered.program import DTYPES, LoweredProgram, name_of, stage_of
from compressa.transports.settings import Settings, tune

_ROOM = 1 << 16  # programs under way at the same time
_CALLED = 0  # the slot of what `run` has begun
_BRIEF_NS = 20_000_000  # what takes longer is for the communication thread, which keeps deadlines
_WOKEN_S = 1.0
_PAUSE_S = 0.001
_ARGUMENTS = struct.Struct(f"<{w.CALL_WORDS}q")
_NS = 1_000_000_000
_PRIORITIES = 1 << 24  # in a step


class Loop:
    """Runs lowered sums and exchanges over sockets to every other rank.

    `run` is for any thread, all else for the communication thread.

    Args:
        rank: This rank.
        sockets: By peer, connected ones, equally many for each; owned from now on.
        settings: Sizes and times.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        number: Of the first of these among the connections of two ranks, for their keys.
        failed: Called on the communication thread when a peer is lost that owes something, or sends
            nonsense; and for whatever is begun afterwards.

    Attributes:
        core_free: Whether a core is free to look for what comes, instead of sleeping.
        busy: Whether the communication thread has to drive.
        fences: What `exchange` can wait for.
    """

    def __init__(
        self,
        rank: int,
        sockets: Mapping[int, Sequence[socket.socket]],
        settings: Settings,
        early_bytes: int,
        failed: Callable[[CompressaError], None],
        number: int = 0,
    ) -> None:
        prepare()
        self._rank = rank
        self._sockets = [link for several in sockets.values() for link in several]
        self._failed = failed
        several = len(self._sockets) // max(1, len(sockets))
        for link in self._sockets:
            tune(link, settings)
            make_room(link, early_bytes // several)
        count = len(self._sockets)
        self._loop = words(w.LOOP_WORDS)
        self._links = words(w.LINK_WORDS * count).reshape(-1, w.LINK_WORDS)
        self._pollfds = words(count + 2)
        self._programs = words(_ROOM)
        self._staging = np.zeros((max(1, count), w.STAGING_BYTES + w.WORD_BYTES), np.uint8)
        # No frame cuts an element.
        self._chunk_bytes = max(settings.chunk_bytes // w.WORD_BYTES, 1) * w.WORD_BYTES
        self._chunks = np.zeros((2, max(1, count), self._chunk_bytes), np.uint8)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.fences = Fences(self._wake)
        self._address = address_of(self._loop)
        self._under_way: dict[int, _UnderWay] = {}
        self._slots: list[int] = []  # that were used; a heap of the free ones
        self._messages: dict[object, list[Messages]] = {}  # by whom they are with; at rest
        self._on_sent: OnSent | None = None
        self._on_come: OnCome | None = None
        self.busy = False
        self._handed: tuple[LoweredProgram, torch.Tensor] | None = None  # and its values are kept
        self._calling, arguments = threading.Lock(), words(w.CALL_WORDS)
        self._arguments, self._arguments_at = arguments.data, address_of(arguments)
        self._fill(settings, early_bytes)
        self._program_links = join(sockets, self._links, self._staging, *self._chunks)
        self._pacer, self._macs = pace(self._loop, settings.pacer), None
        if settings.authenticated:
            self._macs = authenticate(self._links, settings.keys, number)

    @property
    def sent_bytes(self) -> int:
        """What the kernel has taken, headers included."""
        return int(self._loop[w.SENT_BYTES])

    @property
    def messages(self) -> int:
        """How many messages have left whole."""
        return int(self._loop[w.MESSAGES])

    @property
    def core_free(self) -> bool:  # noqa: D102 - see the class
        return bool(self._loop[w.CORE_FREE])

    @core_free.setter
    def core_free(self, free: bool) -> None:
        self._loop[w.CORE_FREE] = free

    def observe(self, on_sent: OnSent | None) -> None:
        """See `Transport.observe`; it is `wait` that calls, once a message's program is done."""
        self._on_sent = on_sent
        self._time()

    def hear(self, on_come: OnCome | None) -> None:
        """See `Transport.hear`; it is `wait` that calls, once a message's program is done."""
        self._on_come = on_come
        self._time()

    def _time(self) -> None:
        self._loop[w.TIMED] = self._on_sent is not None or self._on_come is not None

    def hold(self, held: bool) -> None:
        """Have nothing leave, or all that waits when the thread drives again."""
        self._loop[w.HELD] = held

    def missing(self, key: Key) -> list[int]:
        """Return the peers that what is under way waits for, by the name of its first exchange."""
        for each in list(self._under_way.values()):
            if each.key == key:
                return each.program.missing
        return []

    def program(self, table: Table, dtype: torch.dtype) -> LoweredProgram | None:
        """Return a program that this loop can run; None if it can not add values of that dtype."""
        return LoweredProgram(table, dtype, self._program_links) if dtype in DTYPES else None

    def start(
        self,
        program: LoweredProgram,
        values: torch.Tensor | Region,
        divisor: int,
        key: Key,
        stride: int,
        priority: int,
        done: Callable[[], None],
    ) -> bool:
        """Begin a program, or go on with it, unless another thread drives.

        Args:
            program: One that is not under way, or that `run` has not brought to its end.
            values: What is summed in place; lent until `done` is called.
            divisor: What they are divided by before.
            key: Name of its first exchange.
            stride: By how much the next ones' stages are larger.
            priority: The smallest goes first.
            done: Called by `wait`.

        Returns:
            Whether it is under way now, or `failed` was called.
        """
        if self._loop[w.FAULT]:
            self._tell()
            return True
        if not self._drives():
            return False
        under_way = _UnderWay(program, values, key, stride, done)
        if self._handed is not None and self._handed[0] is program:
            self._handed, self._under_way[_CALLED] = None, under_way
            if not program.under_way:  # whoever drove meanwhile has brought it to its end
                self._loop[w.DONE_COUNT] = 1
            return True
        where = (values.data_ptr(), 0) if isinstance(values, torch.Tensor) else values.where()
        self._begin(under_way, where, divisor, priority)
        return True

    def exchange(
        self, key: Key, exchange: Exchange, priority: int, done: Done, fence: Fence | None = None
    ) -> bool:
        """Begin an exchange, unless another thread drives.

        Args:
            key: Its name.
            exchange: Its buffers are on the CPU, and lent until `done` is called.
            priority: As in `start`.
            done: Called by `wait`, with what was received; in this call if nothing is exchanged.
            fence: When it is to begin; at once if not given.

        Returns:
            Whether it is under way now, or over, or `failed` was called.
        """
        shape = shape_of(exchange)
        if not any(shape):
            done(dict(exchange.incoming))
            return True
        if self._loop[w.FAULT]:
            self._tell()
            return True
        if not self._drives():
            return False
        at_rest = self._messages.setdefault(shape, [])
        messages = at_rest.pop() if at_rest else Messages(*shape, self._program_links)
        messages.lend(exchange)

        def received() -> None:
            result = messages.received()
            at_rest.append(messages)
            done(result)

        lent = exchange, fence
        self._begin(_UnderWay(messages.program, lent, key, 1, received), (0, 0), 1, priority, fence)
        return True

    def _drives(self) -> bool:
        """Whether the communication thread drives, or does from now on."""
        self.busy = bool(self._under_way) or bool(take_over(self._address))
        return self.busy

    def _begin(
        self,
        under_way: _UnderWay,
        where: tuple[int, int],
        divisor: int,
        priority: int,
        fence: Fence | None = None,
    ) -> None:
        if self._slots:
            slot = heapq.heappop(self._slots)
        else:
            slot = int(self._loop[w.PROGRAM_ROOM])
            if slot == _ROOM:
                raise StateError(f"more than {_ROOM} exchanges are under way")
            self._loop[w.PROGRAM_ROOM] = slot + 1
        program, key = under_way.program.address, under_way.key
        self._under_way[slot], self._programs[slot] = under_way, program
        urgency = key.step * _PRIORITIES + priority
        what, at = (program, where[0], divisor), 0 if fence is None else fence.address
        begin(self._address, *what, *name_of(key), under_way.stride, urgency, at, where[1])

    def run(self, program: LoweredProgram, values: torch.Tensor, divisor: int, key: Key) -> bool:
        """Run a program on this thread, unless another one drives, or it takes long.

        Args:
            program: Not under way.
            values: As in `start`; lent until then, or until `start` says so.
            divisor: As in `start`.
            key: As in `start`.

        Returns:
            Whether it is done. If not, `start` is to go on with it.
        """
        if self._under_way:
            return False
        if self._handed is not None:  # its caller was interrupted, and has let go of its values
            self._loop[w.FAULT] = self._loop[w.FAULT] or w.F_GIVEN_UP
            return False
        what = self._address, program.address, values.data_ptr(), divisor
        with self._calling:
            self._handed = program, values
            _ARGUMENTS.pack_into(self._arguments, 0, *what, *name_of(key), _BRIEF_NS)
            found = call(self._arguments_at)
            if found != NOTHING:
                self._handed = None
        return bool(found == PROGRAM_DONE)

    def wait(self, descriptor: int, timeout_s: float, seen_s: float | None = None) -> float:
        """Go on with what is under way until something is done; see `Waiter.wait`."""
        seen_s = time.monotonic() if seen_s is None else seen_s
        self._loop[w.OTHER_FD] = descriptor
        found = drive(self._address, int(timeout_s * _NS), int(seen_s * _NS))
        if found == FAILED:
            self._tell()
        elif found == PROGRAM_DONE:
            self._report()
        return int(self._loop[w.SEEN_NS]) / _NS

    def away_s(self) -> float:
        """Return for how many seconds this process did not run in `wait`, and begin anew."""
        away_ns, self._loop[w.AWAY_NS] = int(self._loop[w.AWAY_NS]), 0
        return away_ns / _NS

    def fail(self) -> None:
        """End everything under way: nothing is written to lent memory from now on."""
        self._loop[w.FAULT] = self._loop[w.FAULT] or w.F_GIVEN_UP
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)
        for link in self._sockets:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self.busy = False
        end_s = time.monotonic() + _WOKEN_S
        while self._loop[w.DRIVING] == w.CALLER and time.monotonic() < end_s:  # it was woken
            time.sleep(_PAUSE_S)
        self._under_way.clear()

    def finish(self) -> None:
        """End the own streams, behind what the kernel has taken; nobody drives any more."""
        for link in self._sockets:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Free what is held; nobody drives any more."""
        self._loop[w.FAULT] = self._loop[w.FAULT] or w.F_GIVEN_UP
        for link in self._sockets:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        forget(self._address)
        self.fences.drop()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _tell(self) -> None:
        """Tell what has failed; nothing is driven any more."""
        self.busy = False
        self._failed(failure(self._loop, self._rank, authenticated=self._macs is not None))

    def _report(self) -> None:
        self._loop[w.DONE_COUNT] = 0
        over = [slot for slot, each in self._under_way.items() if not each.program.under_way]
        done = [self._under_way.pop(slot) for slot in over]
        for slot in over:
            self._programs[slot] = 0
            if slot != _CALLED:
                heapq.heappush(self._slots, slot)
        if not self._under_way:
            self.busy = False
            let_go(self._address)
        if self._loop[w.TIMED]:
            for each in done:
                self._tell_times(each)
        for each in done:
            each.done()

    def _tell_times(self, done: _UnderWay) -> None:
        """Tell when the messages of a program that is done left and came."""
        step, unit = done.key[:2]
        for name, sends, from_ns, until_ns in done.program.times():
            tell = self._on_sent if sends else self._on_come
            if tell is not None and 0 < from_ns <= until_ns:
                # On Linux the clock of the loop is that of `time.perf_counter`.
                tell(Key(step, unit, *stage_of(name)), from_ns / _NS, until_ns / _NS)

    def _fill(self, settings: Settings, early_bytes: int) -> None:
        loop = self._loop
        loop[w.LINKS], loop[w.LINK_COUNT] = address_of(self._links), len(self._sockets)
        loop[w.POLLFDS], loop[w.PROGRAMS] = address_of(self._pollfds), address_of(self._programs)
        loop[w.EPOCH], loop[w.PROGRAM_ROOM] = settings.epoch, _CALLED + 1
        loop[w.CHUNK_BYTES], loop[w.EARLY_LIMIT] = self._chunk_bytes, early_bytes
        loop[w.POLL_NS], loop[w.SOON] = int(settings.poll_s * _NS), True
        loop[w.WAKE_FD], loop[w.OTHER_FD] = self._wake, -1


class _UnderWay(NamedTuple):
    """What the communication thread drives, with the memory that is lent to it."""

    program: LoweredProgram
    lent: object
    key: Key
    stride: int
    done: Callable[[], None]
