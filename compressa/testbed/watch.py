"""Watches of a testbed while something runs on it: interface counters, and the queue of a port.

Peaks need many readings. A reading of counters takes some 10 microseconds for each host, one of a
queue as long (one `tc` reads it again and again), so a thread takes one every millisecond or two.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, Self, TypeVar

from compressa.errors import BackendUnavailable

Reading = TypeVar("Reading")

_JOIN_S = 5.0
_WINDOW_S = 0.01
_TRIES = 5


class Watch(Generic[Reading]):
    """Takes readings on a thread of its own. Use as a context manager.

    Args:
        read: Takes one; an error of it is raised when the watch ends.
        every_s: Pause between two.

    Attributes:
        readings: Time (of `time.monotonic`) and reading, one after the other. A reading that takes
            longer than the pause is taken again, some times at most.
    """

    def __init__(self, read: Callable[[], Reading], every_s: float = 0.002) -> None:
        self.readings: list[tuple[float, Reading]] = []
        self._read = read
        self._every_s = every_s
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compressa-watch", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End."""
        self._over.set()
        self._thread.join(_JOIN_S)
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self.readings.append(self._taken())
            while not self._over.wait(self._every_s):
                self.readings.append(self._taken())
        except Exception as error:
            self._error = error

    def _taken(self) -> tuple[float, Reading]:
        """Take a reading, again if it was interrupted: who knows what moment that tells of."""
        for _ in range(_TRIES):
            begin_s = time.monotonic()
            reading = self._read()
            end_s = time.monotonic()
            if end_s - begin_s <= self._every_s:
                break
        return (begin_s + end_s) / 2, reading


class Queue(NamedTuple):
    """What `tc -s qdisc` says of the queue before a port.

    Attributes:
        sent_bytes: What has left it since it was made.
        backlog_bytes: What waits in it now.
        dropped: Packets that found it full.
    """

    sent_bytes: int
    backlog_bytes: int
    dropped: int


class QueueReader:
    """Reads a queue again and again through one `tc`. Use as a context manager.

    Args:
        enter: Words that run a command where the device is.
        device: Its name.
    """

    def __init__(self, enter: Sequence[str], device: str) -> None:
        words = [*enter, "tc", "-s", "-j", "-batch", "-"]
        self._line = f"qdisc show dev {device}\n"
        self._tc = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def read(self) -> Queue:
        """Read it, in some 20 microseconds.

        Raises:
            BackendUnavailable: `tc` says nothing of it.
        """
        assert self._tc.stdin is not None
        assert self._tc.stdout is not None
        self._tc.stdin.write(self._line)
        answer = self._tc.stdout.readline()
        try:
            queue = json.loads(answer)[0]
            return Queue(queue["bytes"], queue["backlog"], queue["drops"])
        except (ValueError, LookupError) as error:
            raise BackendUnavailable(f"tc tells nothing of this queue: {answer!r}") from error

    def __enter__(self) -> Self:
        """Return the reader."""
        return self

    def __exit__(self, *_: object) -> None:
        """End `tc`."""
        self._tc.communicate()


def burstiness(readings: Sequence[tuple[float, int]], window_s: float = _WINDOW_S) -> float:
    """Return the peak over the mean of what an interface carries in windows of equal length.

    1 is a steady stream. Between two readings the counter is taken to grow steadily.

    Args:
        readings: Time in seconds and a counter of bytes, one after the other.
        window_s: Length of a window; readings should be less than half as far apart.

    Returns:
        The ratio; 0 if nothing was carried.

    Raises:
        ValueError: The readings do not span a window.

    Example:
        >>> burstiness([(0.00, 0), (0.01, 300), (0.02, 300), (0.03, 300)])
        3.0
    """
    begin_s, end_s = readings[0][0], readings[-1][0]
    windows = int((end_s - begin_s) / window_s + 1e-6)
    if windows < 1:
        raise ValueError(f"readings over {end_s - begin_s:g} s do not span {window_s:g} s")
    edges = [_at(readings, begin_s + i * window_s) for i in range(windows + 1)]
    carried = [after - before for before, after in pairwise(edges)]
    total = sum(carried)
    return max(carried) * windows / total if total else 0.0


def _at(readings: Sequence[tuple[float, int]], time_s: float) -> float:
    """What the counter stood at."""
    after_it = bisect_right(readings, time_s, key=lambda reading: reading[0])
    if after_it == len(readings):
        return readings[-1][1]
    (from_s, before), (to_s, after) = readings[after_it - 1], readings[after_it]
    return before + (after - before) * (time_s - from_s) / (to_s - from_s)
