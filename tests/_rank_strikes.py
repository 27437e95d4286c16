"""Moments inside the library at which a test has something happen."""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from compressa.aggregators.scopes import ScopePayload
from compressa.collectives.base import Exchange, Operation
from compressa.engine.driver import Driver
from compressa.engine.start import process_groups, startup
from compressa.engine.task import Task
from compressa.engine.units.unit_runtime import UnitRuntime
from compressa.hooks import register
from compressa.transports import frames
from compressa.transports.base import Done, Key
from compressa.transports.lowered import _words
from compressa.transports.lowered.loop import Loop
from compressa.transports.lowered.program import LoweredProgram

Strike = Callable[[], None]
Due = Callable[[frames.Frame, memoryview], tuple[str, int] | None]
_SOME, _WRITABLE_S = 400, 5.0
_FIELDS = (0, 2, 4, 20)  # bytes of the magic, the version, the epoch and the message's length


@contextmanager
def in_encode(step: int, strike: Strike) -> Iterator[None]:
    """On a worker thread, before a unit of the step is encoded."""
    collect, calls = UnitRuntime.collect, itertools.count()

    def broken(self: UnitRuntime, gradients: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        if next(calls) >= 3 * step:
            strike()
        return collect(self, gradients)

    with mock.patch.object(UnitRuntime, "collect", broken):
        yield


@contextmanager
def in_exchange(step: int, strike: Strike) -> Iterator[None]:
    """On the communication thread, when the first messages of the step have been handed over."""
    launch = Driver._launch

    def broken(self: Driver, task: Task, operation: Operation) -> None:
        launch(self, task, operation)
        if task.step >= step:
            strike()

    with mock.patch.object(Driver, "_launch", broken):
        yield


@contextmanager
def in_registration(part: int, strike: Strike) -> Iterator[None]:
    """Before it, or in the middle; which of them, `part` settles."""
    targets: list[tuple[Any, str]] = [
        (register, "check_unregistered"),
        (startup, "agree"),
        (startup, "open_transport"),
        (process_groups, "new_group"),
    ]
    owner, name = targets[part % len(targets)]
    real = getattr(owner, name)

    def broken(*arguments: Any, **named: Any) -> Any:
        strike()
        return real(*arguments, **named)

    with mock.patch.object(owner, name, broken):
        yield


@contextmanager
def on_payloads(due: Callable[[int], int | None]) -> Iterator[None]:
    """Make payloads longer or shorter than they should be.

    Args:
        due: From the step to a variant, for a payload that is to be changed; else to None.
    """
    seal = ScopePayload.seal

    def broken(self: ScopePayload, payload: torch.Tensor, turn: Any, body: int) -> torch.Tensor:
        filled = seal(self, payload, turn, body)
        variant = due(turn.step)
        if variant is None:
            return filled
        return filled[:-1] if variant % 2 else torch.cat([filled, filled[:1]])

    with mock.patch.object(ScopePayload, "seal", broken):
        yield


@contextmanager
def on_frames(due: Due) -> Iterator[None]:
    """Flip bits of frames that leave.

    Args:
        due: From a frame and its data to "flip" or "header" and a variant, for a frame that is to
            be changed; else to None.
    """
    pack = frames.Frame.pack

    def broken(
        self: frames.Frame,
        data: memoryview = frames.NO_DATA,
        check: frames.Check = frames.CHECKSUM,
    ) -> bytearray:
        kind, variant = due(self, data) or ("", 0)
        header = pack(self, _changed(data) if kind == "flip" else data, check)
        if kind == "header":
            header[_FIELDS[variant % len(_FIELDS)]] ^= 8
        return header

    with mock.patch.object(frames.Frame, "pack", broken), _on_compiled(due):
        yield


@contextmanager
def _on_compiled(due: Due) -> Iterator[None]:
    """Where compiled code sends, a broken frame goes before what it sends."""
    exchange, start = Loop.exchange, Loop.start

    def strike(loop: Loop, key: Key, peer: int, data: memoryview, size: int) -> None:
        epoch = int(loop._loop[_words.EPOCH])
        frame = frames.Frame(frames.Kind.DATA, epoch, key, size, 0, len(data))
        kind, variant = due(frame, data) or ("", 0)
        if not kind:
            return
        header = frame.pack(_changed(data) if kind == "flip" else data)
        if kind == "header":
            header[_FIELDS[variant % len(_FIELDS)]] ^= 8
        link = loop._sockets[loop._links[:, _words.PEER].tolist().index(peer)]
        select.select([], [link], [], _WRITABLE_S)
        link.send(bytes(header) + bytes(data))

    def broken_exchange(
        self: Loop, key: Key, messages: Exchange, priority: int, done: Done, *more: Any
    ) -> bool:
        for peer, buffer in messages.outgoing.items():
            strike(self, key, peer, buffer[:_SOME].numpy().data, buffer.numel())
        return exchange(self, key, messages, priority, done, *more)

    def broken_start(
        self: Loop,
        program: LoweredProgram,
        values: torch.Tensor,
        divisor: int,
        key: Key,
        *more: Any,
    ) -> bool:
        _, first, sends, *_ = program._hops[0].tolist()
        for row in program.rows[first : first + sends].tolist():
            size = row[_words.R_BYTES]
            peer = program._peers[row[_words.R_LINK]]
            strike(self, key, peer, memoryview(bytes(min(size, _SOME))), size)
        return start(self, program, values, divisor, key, *more)

    with (
        mock.patch.object(Loop, "exchange", broken_exchange),
        mock.patch.object(Loop, "start", broken_start),
    ):
        yield


def _changed(data: memoryview) -> memoryview:
    """Return data of which the checksum is another: what leaves differs from it by a bit."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x10
    return memoryview(changed)
