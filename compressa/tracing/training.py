"""Training: what the thread that trains does outside of waits, in stretches that follow each other.

A stretch ends where a wait or a step begins. Of each it is known how long the thread was on a core,
how long it was ready to run without one, and how much of its computing was done for this package.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compressa.tracing.events import Span
from compressa.tracing.thread_clock import Reading, Spent, ThreadClock, spent


class Training:
    """Notes stretches of the thread that makes it; its other calls may come from any thread.

    Args:
        add: Keeps a span.

    Attributes:
        step: Which is under way; -1 before the first.
    """

    def __init__(self, add: Callable[[Span], None]) -> None:
        self._add = add
        self._clock = ThreadClock()
        self._since: Reading | None = None  # when the stretch began; None in a wait
        self._before: Reading | None = None  # the wait, if one is under way
        self.step = -1
        self._calls_s = 0.0
        self._inside = False

    @property
    def thread(self) -> int:
        """Whose stretches these are."""
        return self._clock.thread

    def begin(self, step: int) -> float:
        """Begin a step, and a stretch; return when it is, on `time.perf_counter`."""
        now = self._clock.read()
        self._end(now)
        self._since, self.step = now, step
        return now.at_s

    def end(self) -> None:
        """End the stretch under way, if there is one."""
        if self._since is not None:
            self._end(self._clock.read())

    def begin_wait(self) -> None:
        """End the stretch: the thread begins to wait."""
        self._before = now = self._clock.read()
        self._end(now)

    def end_wait(self) -> Spent:
        """Begin a stretch: the thread has waited; return what became of the time."""
        self._since = now = self._clock.read()
        before, self._before = self._before, None
        return Spent(None, None) if before is None else spent(before, now)

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Count what the thread computes meanwhile to this package; such calls may be nested."""
        if self._inside or threading.get_ident() != self.thread:
            yield
            return
        self._inside, began_s = True, time.thread_time()
        try:
            yield
        finally:
            self._inside = False
            self._calls_s += time.thread_time() - began_s

    def _end(self, now: Reading) -> None:
        since, self._since = self._since, None
        calls_s, self._calls_s = self._calls_s, 0.0
        if since is not None:
            cpu_s, core_s = spent(since, now)
            seconds = now.at_s - since.at_s
            self._add(
                Span(
                    "train",
                    f"step {self.step}",
                    self.step,
                    since.at_s,
                    seconds,
                    cpu_s=cpu_s,
                    core_s=core_s,
                    calls_s=calls_s,
                )
            )
