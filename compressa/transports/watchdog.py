"""Watchdog: sees whether what a GPU was given ends in time, whatever other threads are stuck in."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from compressa.transports.gpu_threads import work_on

_TICK_S = 0.25
_PAUSE_S = 0.001


@dataclass
class _Launch:
    """A call, and what it gave to the GPU.

    Attributes:
        what: The call, for people.
        ready: The GPU can begin when it has come to this, and has done what was launched before.
        since_s: When it was seen to be so; None before.
        event: Comes after what it gave to the GPU; None while it runs.
    """

    what: str
    ready: torch.cuda.Event
    since_s: float | None = None
    event: torch.cuda.Event | None = None

    @property
    def ended(self) -> bool:
        return self.event is not None and self.event.query()


class Watchdog:
    """A thread of its own that looks at calls and at the GPU from time to time.

    A call that waits for another rank blocks its thread if that rank is lost; so may any launch
    after it, once the GPU's queue is full. So the thread that launches can not look itself.

    Args:
        stream: Comes after what calls give to the GPU.
        deadline_s: How long a call and its work may take from when they could have begun: not from
            the launch, as what a GPU was given before may take its time.
        expired: Called once, on the watchdog's thread, with the first call that took longer.
        broke: Called once, instead of `expired`, with an error that the GPU has reported.
    """

    def __init__(
        self,
        stream: torch.cuda.Stream,
        deadline_s: float,
        expired: Callable[[str], None],
        broke: Callable[[RuntimeError], None],
    ) -> None:
        self._stream = stream
        self._deadline_s = deadline_s
        self._expired = expired
        self._broke = broke
        self._launches: deque[_Launch] = deque()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._over = False
        # A call of the driver that never returns must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="compressa-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watching(self, what: str, ready: torch.cuda.Event) -> Iterator[None]:
        """Note a call, and what it gives to the GPU. Only one thread makes calls.

        What fails with an error counts as ended.

        Args:
            what: The call, for `expired`.
            ready: Recorded already; comes before what the call gives to the GPU.
        """
        launch = _Launch(what, ready)
        with self._lock:
            self._launches.append(launch)
        try:
            yield
            event = torch.cuda.Event()
            event.record(self._stream)
            launch.event = event
        except BaseException:  # the caller knows that nothing is under way
            with self._lock:
                self._launches.remove(launch)
            raise

    def ended(self, timeout_s: float) -> bool:
        """Wait until all that was noted has ended.

        Args:
            timeout_s: Longest wait.

        Returns:
            Whether it has, in time and without an error.
        """
        end_s = time.monotonic() + timeout_s
        try:
            while (late := self._first() is not None) and time.monotonic() < end_s:
                time.sleep(_PAUSE_S)
        except RuntimeError:  # of the GPU, which the watchdog's own thread reports
            return False
        return not late and not self._over

    def close(self) -> None:
        """End the thread, and wait for it half a second at most; it may be the caller's own."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * _TICK_S)

    def _run(self) -> None:
        work_on(self._stream.device)
        while not self._closing.wait(_TICK_S):
            try:
                first = self._first()
                late = first is not None and self._late(first)
            except RuntimeError as error:  # of any work on the GPU, which is told here
                self._over = True
                self._broke(error)
                return
            if first is not None and late:
                self._over = True
                self._expired(first.what)
                return

    def _late(self, first: _Launch) -> bool:
        """Whether the first call has had its time; what was launched before it has ended."""
        if first.since_s is None and first.ready.query():
            first.since_s = time.monotonic()
        return first.since_s is not None and time.monotonic() - first.since_s > self._deadline_s

    def _first(self) -> _Launch | None:
        """The first call that has not ended."""
        with self._lock:
            while self._launches:
                first = self._launches[0]
                if not first.ended:
                    return first
                self._launches.popleft()
        return None
