"""Silence: peers from which nothing is heard.

It is also noticed when this process itself did not run: stopped by a signal, with the machine, or
by a call that kept the interpreter's lock. That time counts against no peer, whose signs of life
lie unread meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compressa.errors import PeerLost

_BRIEF_S = 1.0  # a busy machine has a thread wait for so long


@dataclass(frozen=True)
class Absence:
    """A time in which this process did not run.

    Attributes:
        seconds: How long it was.
        ended_s: Its end, of `time.monotonic`.
    """

    seconds: float
    ended_s: float


class Hearing:
    """What is noticed from one look to the next; without a clock.

    Args:
        silence_s: How long a peer may be silent.
        tick_s: Between two looks, if nothing keeps this process from running.
        now_s: The time.
    """

    def __init__(self, silence_s: float, tick_s: float, now_s: float) -> None:
        self._silence_s, self._tick_s = silence_s, tick_s
        self._looked_s = now_s
        self._absences: list[Absence] = []
        self._absence: Absence | None = None

    def absence_by(self, now_s: float) -> Absence | None:
        """Return the last absence, which may have ended at this time; None if there was none.

        One counts if it was longer than a second.
        """
        gap_s = now_s - self._looked_s - self._tick_s
        return Absence(gap_s, now_s) if gap_s > _BRIEF_S else self._absence

    def look(self, now_s: float, heard: Mapping[int, float]) -> list[int]:
        """Return the peers from which nothing came for longer than `silence_s`, absences apart.

        Args:
            now_s: The time, of `time.monotonic`.
            heard: By peer, when something was heard from it last.
        """
        absence = self.absence_by(now_s)
        if absence is not None and absence is not self._absence:
            self._absence = absence
            self._absences.append(absence)
        self._looked_s = now_s
        first_s = min(heard.values(), default=now_s)
        self._absences = [absence for absence in self._absences if absence.ended_s > first_s]
        return [peer for peer, s in heard.items() if self._awake_s(s, now_s) > self._silence_s]

    def _awake_s(self, since_s: float, now_s: float) -> float:
        """For how long this process has run since then."""
        away = (min(a.seconds, a.ended_s - since_s) for a in self._absences if a.ended_s > since_s)
        return now_s - since_s - sum(away)


def silent(peer: int, silence_s: float) -> PeerLost:
    """Return the error for a peer that was silent for too long."""
    return PeerLost(peer, f"rank {peer} is lost: nothing was heard for {silence_s:g} s")
