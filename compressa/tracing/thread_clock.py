"""What the system knows of one thread: its time on a core, and its time without one.

Linux counts for each thread how long it was ready to run while others had the cores
(`/proc/self/task/<tid>/schedstat`, the second figure). In what is left of its time, neither on a
core nor waiting for one, it was blocked: by the interpreter's lock, by another thread, in a sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from typing import NamedTuple

_FIGURES_BYTES = 64
# To release the interpreter's lock in order to read a clock might cost milliseconds to get it back.
_libc = ctypes.PyDLL(None) if sys.platform == "linux" else None
if _libc is not None:
    _libc.pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
    _libc.pread.restype = ctypes.c_ssize_t


class Reading(NamedTuple):
    """A thread's clocks.

    Attributes:
        at_s: When they were read, on `time.perf_counter`.
        cpu_s: Its time on a core; None if unknown.
        core_s: How long it was ready to run and had no core; None if unknown.
        runs: How often it was given a core.
    """

    at_s: float
    cpu_s: float | None
    core_s: float | None
    runs: int = 0


class Spent(NamedTuple):
    """What became of a thread's time between two readings; None where that is unknown.

    Attributes:
        cpu_s: On a core.
        core_s: Waiting for one.
    """

    cpu_s: float | None
    core_s: float | None


class ThreadClock:
    """The clocks of the thread that makes it; to read them releases no lock.

    Example:
        >>> clock = ThreadClock()
        >>> before = clock.read()
        >>> spent(before, clock.read()).cpu_s >= 0
        True
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(self.thread)
        self._file = _opened(threading.get_native_id())

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)  # type: ignore[arg-type]

    def read(self) -> Reading:
        """Read them; from any thread, for as long as the clock's own runs."""
        return Reading(time.perf_counter(), self.cpu_s(), *self._scheduled())

    def cpu_s(self) -> float | None:
        """Time on a core since the thread began; None if it is unknown, as from another thread."""
        if threading.get_ident() == self.thread:
            return time.thread_time()
        try:
            return None if self._clock is None else time.clock_gettime(self._clock)
        except OSError:
            return None  # it has ended

    def _scheduled(self) -> tuple[float | None, int]:
        if self._file is None:
            return None, 0
        figures = _read(self._file)
        return (None, 0) if figures is None else (figures[1] / 1e9, figures[2])


def spent(before: Reading, after: Reading) -> Spent:
    """What became of the time between two readings of one clock."""
    return Spent(_difference(before.cpu_s, after.cpu_s), _difference(before.core_s, after.core_s))


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(after - before, 0.0)


def _opened(thread: int) -> int | None:
    """Open a thread's figures; None if the system keeps none: it says so by zeros, or no file."""
    if _libc is None:
        return None
    try:
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:
        return None
    figures = _read(file)
    if figures is None or not figures[2]:  # the thread runs, so it was given a core
        os.close(file)
        return None
    return file


def _read(file: int) -> tuple[int, int, int] | None:
    """Time on a core, waiting for one, and how often one was given."""
    assert _libc is not None
    figures = ctypes.create_string_buffer(_FIGURES_BYTES)
    if _libc.pread(file, figures, _FIGURES_BYTES, 0) <= 0:
        return None
    try:
        ran, waited, runs = map(int, figures.value.split())
    except ValueError:
        return None
    return ran, waited, runs
