"""A rate limit inside the sending process, for machines that allow no shaped network.

The loopback fallback of the testbed has no link to shape. What a program can do by itself is to
hold back each of its own sends for as long as the wire would have needed. That paces only senders
that call it: Compressa's own transport does, the hooks that PyTorch ships cannot.

The rate comes from the environment of the process, and from a file that the testbed rewrites when
`set_link` changes the link of ranks that are already running.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

from compressa.errors import ConfigError

PACE_VARIABLE = "COMPRESSA_PACE_BITS_PER_S"
PACE_FILE_VARIABLE = "COMPRESSA_PACE_FILE"
_LATE_S = 0.0003


@final
class Pacer:
    """Delays a sender so that it never exceeds a rate. Safe to call from several threads.

    After `wait(n)` returns, `n` bytes have had their time on the wire, behind all bytes of earlier
    calls. A wake-up that was up to 0.3 ms late is made good by the next call; there is no other
    burst. Pace in pieces that take half a millisecond or more: sleeping costs some 0.1 ms.

    Args:
        rate_bits_per_s: The rate, or None for no limit.

    Example:
        >>> pacer = Pacer(8e6)
        >>> pacer.wait(1000)  # one millisecond
    """

    def __init__(self, rate_bits_per_s: float | None) -> None:
        self._rate_bits_per_s = rate_bits_per_s
        self._file: Path | None = None
        self._free_at_s = 0.0
        self._lock = threading.Lock()

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

    @property
    def rate_bits_per_s(self) -> float | None:
        """The rate in force, or None when there is no limit."""
        return self._rate_bits_per_s

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
        self._rate_bits_per_s = _rate(text)

    def wait(self, n_bytes: int) -> None:
        """Block for as long as `n_bytes` need at the rate, behind all that was sent before."""
        until_s = self.reserve(n_bytes)
        if until_s is not None:
            time.sleep(max(0.0, until_s - time.monotonic()))

    def reserve(self, n_bytes: int) -> float | None:
        """Take the next turn for `n_bytes`, for callers that must not block.

        Returns:
            The time of `time.monotonic` at which they have had their time on the wire, and may
            be sent; None for now.
        """
        if self._rate_bits_per_s is None:
            return None
        with self._lock:
            now_s = time.monotonic()
            # A sender that comes back this soon was late waking up, not idle.
            idle = now_s - self._free_at_s > _LATE_S
            begin_s = now_s if idle else self._free_at_s
            self._free_at_s = until_s = begin_s + n_bytes * 8 / self._rate_bits_per_s
        return until_s if until_s > now_s else None


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
