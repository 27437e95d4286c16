"""Attempts: which of several calls for one purpose belong together, on all ranks.

A collective call is named by its purpose and the number of the attempt. A rank whose call fails
tells the others that this attempt is withdrawn. Who comes to it later, or still waits in it, goes
on with the next one: so a call that one rank made alone is no part of those that all make later.

Whoever succeeds with an attempt has heard from all that they take part in it, and whoever does not
tells all. So once nothing is under way, every rank has the same number.
"""

from __future__ import annotations

import threading


class Attempts:
    """The numbers on one rank; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[str, int] = {}
        self._withdrawn: dict[str, int] = {}

    def begin(self, purpose: str) -> int:
        """Return the number of a call that begins now: one more than the last for this purpose."""
        with self._lock:
            self._latest[purpose] = number = self._latest.get(purpose, 0) + 1
        return number

    def withdraw(self, purpose: str, number: int) -> None:
        """Note that a call of some rank has failed; this rank's next one has a higher number.

        Args:
            purpose: What the call is for.
            number: Its attempt.
        """
        with self._lock:
            self._latest[purpose] = max(self._latest.get(purpose, 0), number)
            self._withdrawn[purpose] = max(self._withdrawn.get(purpose, 0), number)

    def is_withdrawn(self, purpose: str, number: int) -> bool:
        """Return whether some rank's call failed in an attempt, or in a later one.

        Args:
            purpose: What the call is for.
            number: The attempt.
        """
        with self._lock:
            return self._withdrawn.get(purpose, 0) >= number
