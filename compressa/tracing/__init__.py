"""Tracing: where the time of a step goes, unit by unit and stage by stage.

A `Tracer` records spans, `write` makes a file for Perfetto of them, `read` takes it back, and
`summarise` says what they amount to.
"""

from compressa.tracing.assembly import CAME, LEFT
from compressa.tracing.events import NO_UNIT, STAGES, WAITS, Span, Trace
from compressa.tracing.recorder import MOST_EVENTS, Recording, Tracer, path_of
from compressa.tracing.thread_clock import Reading, ThreadClock, spent
from compressa.tracing.writer import write

__all__ = [
    "CAME",
    "LEFT",
    "MOST_EVENTS",
    "NO_UNIT",
    "STAGES",
    "WAITS",
    "Reading",
    "Recording",
    "Span",
    "ThreadClock",
    "Trace",
    "Tracer",
    "path_of",
    "spent",
    "write",
]
