"""A rate limit inside the sending process: a token bucket, which processes of a host may share.

Where `schedule.pace_bits_per_s` is set, transports ask it before each frame. The bucket fills at
the rate and holds a burst at most; a frame leaves when its bytes are in it, and takes them out. So
in any time t no more than rate * t + burst leaves, whoever sends and in whatever pieces. It is kept
as one number, the time at which it would have been empty (the "theoretical arrival time" of the
generic cell rate algorithm, ITU-T I.371), so that several processes can share it through eight
bytes of a file (`compressa.transports.lowered.bucket`).

The testbed uses it as well: its loopback fallback has no link to shape. What a program can do by
itself is to hold back each of its own sends for as long as the wire would have needed. That paces
only senders that call it: Compressa's own transports do, the hooks that PyTorch ships cannot. That
rate comes from the environment of the process, and from a file that the testbed rewrites when
`set_link` changes the link of ranks that are already running.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, final

from compressa.errors import ConfigError

PACE_VARIABLE = "COMPRESSA_PACE_BITS_PER_S"
PACE_FILE_VARIABLE = "COMPRESSA_PACE_FILE"
_LATE_S = 0.0003
_BURST_S = 0.001
_LEAST_BURST_BYTES = 16 << 10


def default_burst_bytes(rate_bits_per_s: float) -> int:
    """Return what may leave at once unless said otherwise: 1 ms of the rate, at least 16 KiB.

    A wake-up is late by some 0.1 ms, which the bucket makes good; a window of 10 ms, in which
    queues are looked at, sees little of so short a burst.
    """
    return max(_LEAST_BURST_BYTES, round(rate_bits_per_s / 8 * _BURST_S))


class EmptyAt(Protocol):
    """Keeps the time, of `time.monotonic`, at which a bucket would have been empty."""

    def change(self, change: Callable[[float], float]) -> float:
        """Replace the time by what a function makes of it, as if one came after the other.

        Args:
            change: Called with the time in seconds; again where another caller was faster.

        Returns:
            The new time.
        """


@final
class _OwnEmptyAt:
    """For the threads of one process."""

    def __init__(self) -> None:
        self._time_s = 0.0
        self._lock = threading.Lock()

    def change(self, change: Callable[[float], float]) -> float:
        """Change it under a lock."""
        with self._lock:
            self._time_s = change(self._time_s)
            return self._time_s


@final
class Pacer:
    """Delays a sender so that it never exceeds a rate. Safe to call from several threads.

    Without a burst, `n` bytes have had their time on the wire when `wait(n)` returns, behind all
    bytes of earlier calls. A wake-up that was up to 0.3 ms late is made good by the next call; an
    idle sender saves nothing up. Pace in pieces that take half a millisecond or more: sleeping
    costs some 0.1 ms. With one, it is a token bucket: who was idle may send a burst at once. Pace
    in pieces not larger than the burst then.

    Args:
        rate_bits_per_s: The rate, or None for no limit.
        burst_bytes: What may leave at once.
        empty_at: Where the bucket is kept, if others share it.
        now_s: Tells the time.

    Attributes:
        rate_bits_per_s: The rate in force, or None when there is no limit.
        burst_bytes: As given.
        empty_at: Where the bucket is kept.

    Example:
        >>> pacer = Pacer(8e6)
        >>> pacer.wait(1000)  # one millisecond
        >>> Pacer(8e6, burst_bytes=3000).reserve(1000)  # at once
    """

    def __init__(
        self,
        rate_bits_per_s: float | None,
        burst_bytes: int = 0,
        empty_at: EmptyAt | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rate_bits_per_s = rate_bits_per_s
        self.burst_bytes = burst_bytes
        self._file: Path | None = None
        self.empty_at: EmptyAt = empty_at or _OwnEmptyAt()
        self._now_s = now_s

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Pacer:
        """Build the pacer that the testbed asked for; without a testbed it never waits.

        Args:
            environment: Variables to read; by default those of this process.

        Raises:
            ConfigError: The variable does not hold a positive number.
        """
        variables = os.environ if environment is None else environment
        pacer = cls(_rate(variables.get(PACE_VARIABLE, "")))
        if file := variables.get(PACE_FILE_VARIABLE):
            pacer._file = Path(file)
            pacer.reload()
        return pacer

    def reload(self) -> None:
        """Take over the testbed's present link; call it between measurements.

        Raises:
            ConfigError: The testbed's file does not hold a positive number, or is gone.
        """
        if self._file is None:
            return
        try:
            text = self._file.read_text()
        except OSError as error:
            raise ConfigError(
                f"The testbed's rate cannot be read from {self._file} ({error.strerror}); is the "
                "testbed still up?"
            ) from error
        self.rate_bits_per_s = _rate(text)

    def wait(self, n_bytes: int) -> None:
        """Block for as long as `n_bytes` need at the rate, behind all that was sent before.

        Other threads wait beside it, each in its turn. Returns at once without a rate.
        """
        until_s = self.reserve(n_bytes)
        if until_s is not None:
            time.sleep(max(0.0, until_s - time.monotonic()))

    def reserve(self, n_bytes: int) -> float | None:
        """Take the next turn for `n_bytes`, for callers that must not block.

        Returns:
            The time of `time.monotonic` at which they have had their time on the wire, and may
            be sent; None for now.
        """
        rate = self.rate_bits_per_s
        if rate is None:
            return None

        def emptied(empty_s: float) -> float:
            begin_s = _behind(empty_s, self._now_s(), self.burst_bytes * 8 / rate)
            return begin_s + n_bytes * 8 / rate

        until_s = self.empty_at.change(emptied)
        return until_s if until_s > self._now_s() else None


def _behind(empty_s: float, now_s: float, burst_s: float) -> float:
    """When a bucket is empty that was so at a time, and has filled up to a burst at most since."""
    if burst_s:
        return max(empty_s, now_s - burst_s)
    # A sender that comes back this soon was late waking up, not idle.
    return empty_s if now_s - empty_s <= _LATE_S else now_s


def _rate(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise ConfigError(
            f'{PACE_VARIABLE} is "{text}"; give a positive number of bits per second, or unset it.'
        )
    return rate
