"""Loop: the sockets and memory of a transport's lowered sums, and who drives them.

One thread at a time drives: it waits in compiled code for sockets and goes on with what has come,
until a program is done. Mostly that is the communication thread, which waits there for all else as
well. A blocking call drives on its own thread, where nothing else is under way: it is over when the
last message is, and no thread has to wake another.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from compressa.collectives.lowering import Table
from compressa.errors import CompressaError, PayloadError, PeerLost, StateError
from compressa.transports.base import Key
from compressa.transports.frames import way
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
from compressa.transports.lowered.compile import prepare
from compressa.transports.lowered.program import DTYPES, LoweredProgram
from compressa.transports.settings import Settings, tune

_ROOM = 1024  # programs under way at the same time
_CALLED = 0  # the slot of what `run` has begun
_BRIEF_NS = 20_000_000  # what takes longer is for the communication thread, which keeps deadlines
_WOKEN_S = 1.0
_PAUSE_S = 0.001
_ARGUMENTS = struct.Struct(f"<{w.CALL_WORDS}q")
_NS = 1_000_000_000


class Loop:
    """Runs lowered sums over a socket to every other rank.

    `start` and `wait` are for the communication thread, `run` is for any other one.

    Args:
        rank: This rank.
        sockets: By peer, a connected one; owned from now on.
        settings: Sizes and times.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        failed: Called on the communication thread when a peer is lost that owes something, or sends
            nonsense; and for whatever is begun afterwards.

    Attributes:
        core_free: Whether a core is free to look for what comes, instead of sleeping.
        busy: Whether the communication thread has to drive.
    """

    def __init__(
        self,
        rank: int,
        sockets: Mapping[int, socket.socket],
        settings: Settings,
        early_bytes: int,
        failed: Callable[[CompressaError], None],
    ) -> None:
        prepare()
        self._rank = rank
        self._sockets = dict(sockets)
        self._failed = failed
        for link in self._sockets.values():
            tune(link, settings)
        count = len(self._sockets)
        self._loop = words(w.LOOP_WORDS)
        self._links = words(w.LINK_WORDS * count).reshape(-1, w.LINK_WORDS)
        self._pollfds = words(count + 2)
        self._programs = words(_ROOM)
        self._staging = np.zeros((max(1, count), w.STAGING_BYTES + w.WORD_BYTES), np.uint8)
        # No frame cuts an element.
        self._chunk_bytes = max(settings.chunk_bytes // w.WORD_BYTES, 1) * w.WORD_BYTES
        self._chunks = np.zeros((max(1, count), self._chunk_bytes), np.uint8)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._address = address_of(self._loop)
        self._under_way: dict[int, _UnderWay] = {}
        self.busy = False
        self._handed: tuple[LoweredProgram, torch.Tensor] | None = None  # and its values are kept
        self._calling, arguments = threading.Lock(), words(w.CALL_WORDS)
        self._arguments, self._arguments_at = arguments.data, address_of(arguments)
        self._fill(settings, early_bytes)

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

    def missing(self, key: Key) -> list[int]:
        """Return the peers that a sum under way waits for, by the name of its first exchange."""
        for each in list(self._under_way.values()):
            if each.key == key:
                return each.program.missing
        return []

    def program(self, table: Table, dtype: torch.dtype) -> LoweredProgram | None:
        """Return a program that this loop can run; None if it can not add values of that dtype."""
        return LoweredProgram(table, dtype, self._addresses) if dtype in DTYPES else None

    def start(
        self,
        program: LoweredProgram,
        values: torch.Tensor,
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
        if not self._under_way and not take_over(self._address):
            return False
        handed = self._handed is not None and self._handed[0] is program
        free = (i for i in range(_CALLED + 1, _ROOM) if i not in self._under_way)
        slot = _CALLED if handed else next(free)
        self._under_way[slot], self.busy = _UnderWay(program, values, key, done), True
        if handed:
            self._handed = None
            if not program.under_way:  # whoever drove meanwhile has brought it to its end
                self._loop[w.DONE_COUNT] = 1
            return True
        self._programs[slot] = program.address
        self._loop[w.PROGRAM_ROOM] = max(int(self._loop[w.PROGRAM_ROOM]), slot + 1)
        what = self._address, program.address, values.data_ptr(), divisor
        begin(*what, *_name(key), stride, priority)
        return True

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
            _ARGUMENTS.pack_into(self._arguments, 0, *what, *_name(key), _BRIEF_NS)
            found = call(self._arguments_at)
            if found != NOTHING:
                self._handed = None
        return bool(found == PROGRAM_DONE)

    def wait(self, descriptor: int, timeout_s: float) -> None:
        """Go on with what is under way until something is done, or another descriptor is ready.

        Args:
            descriptor: What is waited for besides.
            timeout_s: Longest wait.
        """
        self._loop[w.OTHER_FD] = descriptor
        found = drive(self._address, int(timeout_s * _NS))
        if found == FAILED:
            self._tell()
        elif found == PROGRAM_DONE:
            self._report()

    def fail(self) -> None:
        """End everything under way: nothing is written to lent memory from now on."""
        self._loop[w.FAULT] = self._loop[w.FAULT] or w.F_GIVEN_UP
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)
        for link in self._sockets.values():
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self.busy = False
        end_s = time.monotonic() + _WOKEN_S
        while self._loop[w.DRIVING] == w.CALLER and time.monotonic() < end_s:  # it was woken
            time.sleep(_PAUSE_S)
        self._under_way.clear()

    def close(self) -> None:
        """Free what is held; nobody drives any more."""
        self._loop[w.FAULT] = self._loop[w.FAULT] or w.F_GIVEN_UP
        for link in self._sockets.values():
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        forget(self._address)
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _tell(self) -> None:
        """Tell what has failed; nothing is driven any more."""
        self.busy = False
        self._failed(self._error)

    def _report(self) -> None:
        self._loop[w.DONE_COUNT] = 0
        over = [slot for slot, each in self._under_way.items() if not each.program.under_way]
        done = [self._under_way.pop(slot).done for slot in over]
        self._programs[over] = 0
        if not self._under_way:
            self.busy = False
            let_go(self._address)
        for tell in done:
            tell()

    @property
    def _error(self) -> CompressaError:
        fault, peer, a, b = self._loop[w.FAULT : w.FAULT + 4].tolist()
        return _error(fault, peer, a, b, way(peer, self._rank, "tcp"))

    def _fill(self, settings: Settings, early_bytes: int) -> None:
        loop = self._loop
        loop[w.LINKS], loop[w.LINK_COUNT] = address_of(self._links), len(self._sockets)
        loop[w.POLLFDS], loop[w.PROGRAMS] = address_of(self._pollfds), address_of(self._programs)
        loop[w.EPOCH], loop[w.PROGRAM_ROOM] = settings.epoch, _CALLED + 1
        loop[w.CHUNK_BYTES], loop[w.EARLY_LIMIT] = self._chunk_bytes, early_bytes
        loop[w.POLL_NS], loop[w.SOON] = int(settings.poll_s * _NS), True
        loop[w.WAKE_FD], loop[w.OTHER_FD] = self._wake, -1
        self._addresses = {}
        for number, (peer, link) in enumerate(self._sockets.items()):
            row = self._links[number]
            row[w.FD], row[w.PEER], row[w.PIECE] = link.fileno(), peer, 1
            row[w.STAGING] = self._staging[number].ctypes.data
            row[w.CHUNK] = self._chunks[number].ctypes.data
            self._addresses[peer] = address_of(row)


def _name(key: Key) -> tuple[int, int, int]:
    """Step, unit and stage of an exchange, as frames bear them."""
    return key.step & 0xFFFFFFFF, key.unit, key.stage | key.part << 16


class _UnderWay(NamedTuple):
    """A sum that the communication thread drives."""

    program: LoweredProgram
    values: torch.Tensor
    key: Key
    done: Callable[[], None]


def _error(fault: int, peer: int, a: int, b: int, path: str) -> CompressaError:
    """Say what has failed."""
    if fault == w.F_LOST:
        why = "in the middle of a frame" if b else os.strerror(a)
        return PeerLost(peer, f"rank {peer} is lost: its connection was closed ({why})")
    if fault == w.F_LEFT:
        return PeerLost(peer, f"rank {peer} is lost: it has left the training")
    said = {
        w.F_MAGIC: f"has magic {a & 0xFFFF:#06x} and version {a >> 16 & 0xFF}",
        w.F_HEADER: "is not what was sent: its checksum is wrong",
        w.F_EPOCH: f"is of epoch {a}, this is epoch {b}",
        w.F_SIZES: f"has {a} bytes at {b}",
        w.F_DATA: "is not what was sent: its checksum is wrong",
        w.F_LENGTH: f"is of a message of {a} bytes, where {b} are due",
        w.F_EARLY: f"makes {a} bytes that nobody waits for, more than {b}",
        w.F_TURN: f"has byte {a} of a message where byte {b} is due",
    }
    if fault == w.F_GIVEN_UP:
        return StateError(
            "a sum was interrupted, and what it left behind is no state to go on from"
        )
    return PayloadError(f"a frame {path} {said[fault]}")
