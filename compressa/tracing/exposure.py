"""Exposure: for whom the training thread waited.

The time of a wait up to the end of one of the units that are waited for is put down to that unit,
counted from the end of the one before; what is left after the last of them, to the last.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from compressa.tracing.events import NO_UNIT, Span

_Unit = tuple[int, int]  # step and number


def exposure(spans: Sequence[Span]) -> dict[str, float]:
    """Return seconds that were waited for each unit, by its name, over all steps."""
    names = {(s.step, s.unit): s.name for s in spans if s.stage == "ready"}
    ended_s = _ends(spans)
    units_of: defaultdict[int, list[_Unit]] = defaultdict(list)
    having: defaultdict[tuple[int, str], list[_Unit]] = defaultdict(list)
    for span in spans:
        if span.stage == "ready":
            units_of[span.step].append((span.step, span.unit))
            for parameter in span.parameters:
                having[span.step, parameter].append((span.step, span.unit))
    seconds: defaultdict[str, float] = defaultdict(float)
    for wait in _disjoint(span for span in spans if span.stage == "wait"):
        # It is for one parameter, or for all.
        units = having.get((wait.step, wait.name)) or units_of[wait.step]
        ends = sorted((ended_s[unit], names[unit]) for unit in units if unit in ended_s)
        for name, part_s in _shared_out(wait, ends):
            seconds[name] += part_s
    return seconds


def _disjoint(waits: Iterable[Span]) -> Iterator[Span]:
    """Count the time of a wait within another once."""
    until_s = -math.inf
    for wait in sorted(waits, key=lambda wait: wait.started_s):
        began_s, ended_s = max(wait.started_s, until_s), wait.ended_s
        if ended_s > began_s:
            yield wait._replace(started_s=began_s, seconds=ended_s - began_s)
            until_s = ended_s


def _ends(spans: Iterable[Span]) -> dict[_Unit, float]:
    """When the last work on each unit ended; the optimizer's is not the network's."""
    ended_s: dict[_Unit, float] = {}
    for span in spans:
        if span.unit != NO_UNIT:
            key = span.step, span.unit
            ended_s[key] = max(ended_s.get(key, span.ended_s), span.ended_s)
    return ended_s


def _shared_out(wait: Span, ends: Sequence[tuple[float, str]]) -> Iterator[tuple[str, float]]:
    """Share a wait out to those whose ends, in order, lie in it; or else to the last before it."""
    since_s, last = wait.started_s, wait.name
    for ended_s, name in ends:
        if ended_s > wait.ended_s:
            break
        if ended_s > since_s:
            yield name, ended_s - since_s
            since_s = ended_s
        last = name
    if wait.ended_s > since_s:
        yield last, wait.ended_s - since_s
