"""Streams and events of an emulated GPU: work is done when somebody waits for it, and no sooner."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

DEVICE = torch.device("cuda", 0)

Work = Callable[[], object]
UNFINISHED = object()
"""What work returns that waits for something from outside: the stream stays where it is."""


class Stream:
    """Work in order; done when somebody waits for it, or at once if it is eager."""

    def __init__(self, device: Any = None, priority: int = 0, *, eager: bool | None = None) -> None:
        self.device, self.device_index, self.priority = DEVICE, 0, priority
        self.cuda_stream = id(self)
        _streams[self.cuda_stream] = self
        self._work: deque[Work] = deque()
        self._done = self._given = 0
        self._eager = _emulation.draw_eager() if eager is None else eager

    def give(self, work: Work) -> int:
        """Take work; return its number."""
        with _emulation.lock:
            self._work.append(work)
            self._given += 1
            number = self._given
            if self._eager:
                self.run_until(number)
        return number

    def run_until(self, number: int) -> bool:
        """Do all work up to this number, as far as it can be done now; return whether it was."""
        with _emulation.lock:
            while self._done < number and self._work:
                if self._work[0]() is UNFINISHED:
                    break
                self._work.popleft()
                self._done += 1
            return self.done(number)

    def done(self, number: int) -> bool:
        return self._done >= number

    def reach(self, number: int) -> None:
        """Wait for all work up to this number."""
        while not self.run_until(number):
            time.sleep(0.001)

    def synchronize(self) -> None:
        _refuse_in_capture()
        self.reach(self._given)

    def query(self) -> bool:
        _refuse_in_capture()
        return self.done(self._given)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        position = event.position
        if position is not None:
            stream, number = position
            self.give(lambda: None if stream.run_until(number) else UNFINISHED)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())


_streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()


def stream_of(handle: int) -> Stream:
    """Return the stream that the driver knows by a handle."""
    return _streams[handle]


class Event:
    """A position in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.position: tuple[Stream, int] | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        self.position = stream, stream.give(lambda: None)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        _refuse_in_capture()
        if self.position is not None:
            self.position[0].reach(self.position[1])

    @property
    def passed(self) -> bool:
        """Whether it was reached, so far as anybody has asked."""
        return self.position is None or self.position[0].done(self.position[1])

    def query(self) -> bool:
        """Whether it is reached; a GPU goes on by itself, so asking often enough helps."""
        _refuse_in_capture()
        return self.position is None or self.position[0].run_until(self.position[1])


class Emulation(threading.local):
    """What is current on a thread."""

    current: Stream | None = None
    lock = threading.RLock()
    relaxed = False
    eager: random.Random | None = None
    captured: Stream | None = None
    broken: ClassVar[list[str]] = []
    default: Stream | None = None

    def draw_eager(self) -> bool:
        chance = type(self).eager
        return chance is not None and chance.random() < 0.5


_emulation = Emulation()


def current_stream(device: Any = None) -> Stream:
    stream = _emulation.current or Emulation.default
    assert stream is not None, "torch is not emulated now"
    return stream


def set_stream(stream: Stream) -> None:
    _emulation.current = None if stream is Emulation.default else stream  # of this emulation alone


@contextmanager
def capture() -> Iterator[list[str]]:
    """Capture the current stream, as torch does; give the threads that break it."""
    Emulation.captured, Emulation.broken = current_stream(), []
    try:
        yield Emulation.broken
    finally:
        Emulation.captured = None


def relax() -> None:
    """What this thread calls breaks no capture."""
    _emulation.relaxed = True


def _refuse_in_capture() -> None:
    if Emulation.captured is not None and not _emulation.relaxed:
        Emulation.broken.append(threading.current_thread().name)
        raise RuntimeError("operation not permitted when stream is capturing")


@contextmanager
def stream_context(stream: Stream | None) -> Iterator[None]:
    before = _emulation.current
    _emulation.current = stream or before
    try:
        yield
    finally:
        _emulation.current = before
