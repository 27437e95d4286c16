"""Bucket: the time at which a pacer's is empty, in one word that compiled code can change, too."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from compressa.kernels.cpu._jit import lean
from compressa.pacing import Pacer
from compressa.transports.lowered import _words as w
from compressa.transports.lowered._memory import address_of, swap_if

_NS = 1_000_000_000


@lean
def _replace(address: int, old: int, new: int) -> bool:
    """Change the word at an address if it is the old one; return whether it was."""
    return bool(swap_if(address, 0, old, new))


class SharedEmptyAt:
    """For the threads of a process, its compiled code, and the processes of one host.

    Their `time.monotonic` is the same. Nobody holds a lock, so none is left behind.

    Args:
        path: A file that all of them open; it need not hold anything yet, and may be unlinked when
            all have opened it. None for this process alone.

    Attributes:
        address: Of the time, in nanoseconds, as int64.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            memory = mmap.mmap(-1, w.WORD_BYTES)
        else:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(file).st_size < w.WORD_BYTES:  # nobody paces before all have opened it
                    os.pwrite(file, bytes(w.WORD_BYTES), 0)  # a hole would have no room kept for it
                memory = mmap.mmap(file, w.WORD_BYTES)
            finally:
                os.close(file)
        self._word = np.frombuffer(memory, np.int64)
        self.address = address_of(self._word)
        _replace(self.address, 0, 0)  # which is compiled now, and not while something waits

    def change(self, change: Callable[[float], float]) -> float:
        """Replace the time by what a function makes of it; return it, in seconds.

        Args:
            change: Called again where another one was faster.
        """
        while True:
            before = int(self._word[0])
            after = math.ceil(change(before / _NS) * _NS)
            if _replace(self.address, before, after):
                return after / _NS


def pace(loop: np.ndarray, pacer: Pacer) -> Pacer:
    """Have a loop take its turns from a bucket, which is shared with whatever else sends.

    Args:
        loop: Its words.
        pacer: One without a rate, or `can_share`.

    Returns:
        What is to be kept as long as the loop.
    """
    if pacer.rate_bits_per_s is not None:
        assert isinstance(pacer.empty_at, SharedEmptyAt), "who cannot share it lowers nothing"
        rate = max(1, int(pacer.rate_bits_per_s))
        loop[w.BUCKET], loop[w.PACE_BITS_PER_S] = pacer.empty_at.address, rate
        loop[w.BURST_NS] = pacer.burst_bytes * 8 * _NS // rate
    return pacer


def can_share(pacer: Pacer) -> bool:
    """Whether compiled code can take turns from a pacer's bucket, or need not."""
    return pacer.rate_bits_per_s is None or isinstance(pacer.empty_at, SharedEmptyAt)
