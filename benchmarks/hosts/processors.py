"""Processors: how busy those of this machine are."""

from __future__ import annotations

from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)  # idle, and waiting for a disk
_COUNTED = 8  # what guests use is counted in these already


class Processors:
    """Measures the share of time in which the machine's processors work, for whomever."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a span of time."""
        self._before = _ticks()

    def load(self) -> float:
        """Return the share since `start`: 1 if all of them were busy all the time."""
        busy, total = (now - then for now, then in zip(_ticks(), self._before, strict=True))
        return busy / total if total else 0.0


def _ticks() -> tuple[int, int]:
    """Return busy and all ticks of all processors since the machine started."""
    first = _STAT.read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(word) for word in first.split()[1 : 1 + _COUNTED]]
    return sum(ticks) - sum(ticks[_IDLE]), sum(ticks)
