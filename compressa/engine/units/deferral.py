"""Deferral: whether updates wait for the next forward pass, as what was measured says.

To defer updates hides exchanges behind computing, and costs the training thread Python at each
parameter. Which is more depends on the link, the cores and the model. So some steps are done both
ways, and those that follow in the way that takes less time; neither changes a bit. The other way is
tried again when steps have come to take another time, as they do when the link changes; and else
ever more rarely.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace

from compressa.engine.measuring.stats import Overlap

_FORM = struct.Struct("<??dd")
_BETTER = 0.98  # what takes as long changes nothing
_DRIFT = 0.1
_MOST_ROUNDS = 64

CHOICE_BYTES = _FORM.size


class Deferral:
    """Decides, on one rank for all; told each time what a step of the way in force takes."""

    def __init__(self) -> None:
        self._begun = False
        self._rounds = 1  # from one trial to the next, if nothing changes
        self._left = 0
        self._settled_s = 0.0

    def next(self, now: Overlap, step_s: float) -> Overlap:
        """Return what is to be in force from now on.

        Args:
            now: What is.
            step_s: Seconds of a step, since it is.
        """
        if not self._begun:  # the first steps take their time
            self._begun = True
            return now
        deferred_s, at_once_s = now.deferred_s, now.at_once_s
        if now.deferring:
            deferred_s = step_s
        else:
            at_once_s = step_s
        known = replace(now, deferred_s=deferred_s, at_once_s=at_once_s)
        return self._decided(known) if now.measuring else self._tried(known, step_s)

    def _tried(self, now: Overlap, step_s: float) -> Overlap:
        """Try the other way, if it is time to."""
        self._left -= 1
        drifted = abs(step_s - self._settled_s) > _DRIFT * self._settled_s
        if self._left > 0 and not drifted:
            return now
        return replace(now, deferring=not now.deferring, measuring=True)

    def _decided(self, tried: Overlap) -> Overlap:
        """Choose, after the other way was tried."""
        assert tried.deferred_s is not None
        assert tried.at_once_s is not None
        new_s, old_s = tried.deferred_s, tried.at_once_s
        if not tried.deferring:
            new_s, old_s = old_s, new_s
        better = new_s < _BETTER * old_s
        self._left = self._rounds = 1 if better else min(2 * self._rounds, _MOST_ROUNDS)
        self._settled_s = new_s if better else old_s
        return replace(tried, deferring=tried.deferring is better, measuring=False)


def packed(choice: Overlap) -> bytes:
    """Return a choice as `CHOICE_BYTES` bytes, for `unpacked`."""
    times = (math.nan if s is None else s for s in (choice.deferred_s, choice.at_once_s))
    return _FORM.pack(choice.deferring, choice.measuring, *times)


def unpacked(data: bytes) -> Overlap:
    """Return what was `packed`.

    Args:
        data: From outside.

    Raises:
        ValueError: It is no choice.
    """
    if len(data) != CHOICE_BYTES:
        raise ValueError(f"{len(data)} bytes are no choice of {CHOICE_BYTES}")
    deferring, measuring, *times = _FORM.unpack(data)
    return Overlap(deferring, measuring, *(None if math.isnan(s) else s for s in times))
