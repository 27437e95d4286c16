"""Reactor: one thread's loop over sockets, timers and what other threads ask for."""

from __future__ import annotations

import heapq
import itertools
import select
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from compressa.transports import forks

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Callback = Callable[[], None]

_TICK_S = 0.25
_BRIEF_S = 1.0  # a busy machine has a thread wait for so long
_SELECT_FDS = 1024  # more, `select.select` cannot name


class Waiter(Protocol):
    """Waits for sockets of its own, and for one descriptor besides.

    Attributes:
        core_free: See `Reactor`.
        busy: Whether there is anything that it waits for.
    """

    core_free: bool
    busy: bool

    def wait(self, descriptor: int, timeout_s: float, seen_s: float | None) -> float:
        """Wait until something of its own was done, the descriptor is ready, or so long.

        A time in which this process does not run counts for nothing.

        Args:
            descriptor: A file descriptor, waited for until it can be read from.
            timeout_s: Longest wait, in seconds.
            seen_s: When this thread last looked at `time.monotonic`; None if it never has.

        Returns:
            When it did so last now.
        """

    def away_s(self) -> float:
        """Return for how long that was since it was asked last, in seconds."""


class Reactor:
    """Calls back, on whichever thread runs it, what is due.

    `post` may be called from any thread; everything else only from the running one.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._numbers = itertools.count()
        self._due: Callable[[], bool] = lambda: False
        self._poll_s = 0.0
        self._core_free = True
        self._waiter: Waiter | None = None
        self._away_s = 0.0
        self._seen_s: float | None = None  # when the running thread last looked at the clock
        self._soon = True  # whether what was due last came soon
        self._runner: int | None = None
        self._woken = False
        self._waker, self._wakes = socket.socketpair()
        for end in (self._waker, self._wakes):
            end.setblocking(False)
            forks.own(end)
        forks.own(self._selector)
        self._selector.register(self._wakes, READ, self._awake)

    def post(self, callback: Callback) -> None:
        """Have a function called by the loop, after those posted before it; from any thread."""
        self._posted.append(callback)
        # The flag is cleared before posted functions are looked for, so none is overlooked.
        if not self._woken and threading.get_ident() != self._runner:
            self._woken = True
            try:
                self._waker.send(b"\0")
            except OSError:
                return  # closed: nobody will look

    def call_at(self, time_s: float, callback: Callback) -> None:
        """Have a function called at a time of `time.monotonic`, or soon after it.

        It can not be called off, and is never called if the loop ends before.

        Args:
            time_s: When, in seconds of that clock.
            callback: Called once, on the thread that runs the loop.
        """
        heapq.heappush(self._timers, (time_s, next(self._numbers), callback))

    def watch(self, link: socket.socket, events: int, ready: Callable[[int], None]) -> None:
        """Have `ready` called with those of `events` that a socket is ready for; 0 ends it.

        A socket must be watched no more when it is closed.

        Args:
            link: A socket that does not block.
            events: `READ`, `WRITE` or both; they replace those of an earlier call.
            ready: Called again and again, for as long as the socket is ready.
        """
        known = link in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(link)
        elif known:
            self._selector.modify(link, events, ready)
        else:
            self._selector.register(link, events, ready)

    @property
    def core_free(self) -> bool:
        """Whether a core is free to look for what is due; any thread may say so."""
        return self._core_free

    @core_free.setter
    def core_free(self, free: bool) -> None:
        self._core_free = free
        if self._waiter is not None and self._waiter.busy:
            self._waiter.core_free = free

    def wait_by(self, waiter: Waiter) -> None:
        """Have the loop wait by something else while that is busy, which serves its own sockets."""
        self._waiter = waiter

    def away_s(self) -> float:
        """Return for how long this process did not run, since that was asked last; in seconds.

        Stopped by a signal, or with the machine; wherever the thread was, since its first turn. Up
        to a second at a time does not count: so long it may have to wait for a core.
        """
        self._look(0.0)
        away_s, self._away_s = self._away_s, 0.0
        return away_s + (0.0 if self._waiter is None else self._waiter.away_s())

    def stay_awake(self, poll_s: float, due: Callable[[], bool]) -> None:
        """Look for so long before each sleep, while something is due that may come any moment.

        To fall asleep and be woken takes longer than a short message needs. Where the last wait was
        longer than this, there is no use in it, and the loop sleeps at once.

        Args:
            poll_s: For how long.
            due: Whether anything is due now.
        """
        self._poll_s, self._due = poll_s, due

    def run_once(self, timeout_s: float) -> None:
        """Call back all that is due, then what has been posted; wait if there is nothing.

        The thread that calls this is the running one. What a callback raises comes out of here, and
        what else was due is called next time.

        Args:
            timeout_s: Longest wait.
        """
        self._runner = threading.get_ident()
        self.poll(0.0 if self._posted else timeout_s)
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def poll(self, timeout_s: float) -> None:
        """Serve sockets and timers, and leave what was posted.

        Args:
            timeout_s: Longest wait, if nothing is due; 0.25 s at most without a busy `Waiter`, to
                notice when the process did not run.
        """
        if self._timers:
            timeout_s = min(timeout_s, max(0.0, self._timers[0][0] - time.monotonic()))
        if self._waiter is not None and self._waiter.busy:
            self._waiter.core_free = self._core_free
            self._seen_s = self._waiter.wait(self._selector.fileno(), timeout_s, self._seen_s)
            timeout_s = 0.0
        most_s = min(timeout_s, _TICK_S)
        precisely = most_s > 0 and self._timers
        ready = self._select(self._wait_precisely(most_s) if precisely else most_s)
        self._look(most_s)
        for key, events in ready:
            key.data(events)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _look(self, asked_s: float) -> None:
        """Look at the clock: what passed since the last time, but for a wait, this did not run."""
        seen_s, self._seen_s = self._seen_s, time.monotonic()
        late_s = 0.0 if seen_s is None else self._seen_s - seen_s - asked_s
        if late_s > _BRIEF_S:
            self._away_s += late_s

    def _select(self, timeout_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        looks = self.core_free and self._poll_s > 0
        if timeout_s <= 0 or not looks or not self._due():
            return self._selector.select(timeout_s)
        end_s = time.monotonic() + self._poll_s
        ready = self._selector.select(0.0)
        while self._soon and not ready and self.core_free and time.monotonic() < end_s:
            ready = self._selector.select(0.0)
        ready = ready or self._selector.select(timeout_s)
        self._soon = time.monotonic() < end_s
        return ready

    def close(self) -> None:
        """Free what is held, once nothing runs it; functions posted later are never called."""
        self._woken = True  # nobody reaches for the waker any more
        self._selector.close()
        self._waker.close()
        self._wakes.close()

    def _wait_precisely(self, timeout_s: float) -> float:
        """Wait for what is watched; return how long is left to wait for it in another way.

        Linux's epoll counts in whole milliseconds, in which a fast link sends a frame or two.
        """
        if sys.platform != "linux" or self._selector.fileno() >= _SELECT_FDS:
            return timeout_s
        select.select([self._selector], [], [], timeout_s)
        return 0.0

    def _awake(self, events: int) -> None:
        try:
            self._wakes.recv(4096)
        except BlockingIOError:
            return  # a poll within this one has read it
        self._woken = False
