"""KernelThreads: those that share one call's work on a large array.

A kernel for the CPU is a loop over a slice, and gives the same bits however the array is sliced.
Whoever owns threads makes `KernelThreads` of them and enlists those that call kernels; a call on a
large array then offers slices to what is idle of them while it works itself. Nobody is waited for
that has not begun, so threads that are busy elsewhere cost nothing, and calls cannot deadlock.
Where none are enlisted the calling thread does all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager

Work = Callable[[int, int], None]

_LEAST_ELEMS = 1 << 18  # a fraction of a millisecond: a hand-over takes a tenth of that
SHARED_ELEMS = 2 * _LEAST_ELEMS
"""From so many on the work is shared."""
_SLICES_PER_THREAD = 8  # evens out threads that are held up


class _Enlisted(threading.local):
    """By thread, who shares its work; an attribute that is always there is found 5 times faster."""

    threads: KernelThreads | None = None


_enlisted = _Enlisted()


class KernelThreads:
    """Threads of a pool that may work on one call at a time each.

    Args:
        pool: Runs what the calling thread hands out.
        threads: Most threads that work on a call at once, the calling one included.
    """

    def __init__(self, pool: Executor, threads: int) -> None:
        self._pool = pool
        self._threads = threads

    def enlist(self) -> None:
        """Have all further calls of the current thread share their work with these."""
        _enlisted.threads = self

    @contextmanager
    def enlisted(self) -> Iterator[None]:
        """Enlist the current thread for a while."""
        before = _enlisted.threads
        self.enlist()
        try:
            yield
        finally:
            _enlisted.threads = before

    def run(self, work: Work, slices: list[tuple[int, int]]) -> None:
        """Do all slices, on this thread and on whichever is idle; blocks until all are done.

        Args:
            work: Called once with the bounds of each slice, from several threads at a time.
            slices: Of each, the first element and one past the last; see `cut`.

        Raises:
            Exception: What `work` raised, on whichever thread. That thread took no more slices,
                so that some may be left undone.
        """
        remaining = iter(slices)  # next() on a list's iterator is atomic

        def take() -> None:
            for low, high in remaining:
                work(low, high)

        helpers = min(self._threads, len(slices)) - 1
        offered: list[Future[None]] = [self._pool.submit(take) for _ in range(helpers)]
        try:
            take()
        finally:
            begun = [future for future in offered if not future.cancel()]
            errors = [future.exception() for future in begun]
        for error in errors:
            if error is not None:
                raise error

    def cut(self, size: int, multiple: int) -> list[tuple[int, int]]:
        """Cut an array into slices worth handing out.

        Args:
            size: Number of elements.
            multiple: Slices begin on multiples of this.

        Returns:
            Of each slice, the first element and one past the last.
        """
        step = max(_LEAST_ELEMS, -(-size // (_SLICES_PER_THREAD * self._threads)))
        step = -(-step // multiple) * multiple
        return [(low, min(low + step, size)) for low in range(0, size, step)]


def over_slices(size: int, multiple: int, work: Work) -> None:
    """Call ``work(low, high)`` on slices of 0 to ``size``, by all whom the current thread enlisted.

    Args:
        size: Number of elements.
        multiple: Slices begin on multiples of this.
        work: A kernel on one slice; it releases the GIL, and slices do not depend on each other.
    """
    threads = _enlisted.threads
    if threads is None or size < SHARED_ELEMS:
        work(0, size)
    else:
        threads.run(work, threads.cut(size, multiple))
