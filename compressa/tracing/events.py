"""What a trace consists of: spans of units in stages, and when steps began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Stage = Literal[
    "ready",
    "queued",
    "compress",
    "wire",
    "arrive",
    "decompress",
    "apply",
    "train",
    "wait",
    "core",
    "lock",
]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""The tracks. `ready` lasts from a unit's first gradient to its last; `queued` is time in which a
unit waited for its turn; `wire` lasts from the first byte that leaves to the last that arrives;
`arrive`, of that, from the first byte of a peer's message to its last; `apply` is the optimizer's;
`wait` is the training thread's: exposed communication; `train` is what lies between its waits; in
`core` one of the engine's threads was ready to run and had no core; in `lock` a thread that asked
for the interpreter's lock did not get it."""

Wait = Literal["compress", "turn", "outbox", "decompress"]
WAITS: tuple[Wait, ...] = get_args(Wait)
"""What is queued for: a thread that encodes; the launch of an exchange (another thread, or its turn
in an ordered plan); that the first byte leaves (credit, pace, what is more urgent); a thread that
decodes."""

NO_UNIT = -1


class Span(NamedTuple):
    """Some time that something spent in a stage.

    Attributes:
        stage: One of `STAGES`.
        name: Of parameters, with the range where only a part of one is meant.
        step: The optimizer step that it serves.
        started_s: When it began.
        seconds: How long it lasted.
        unit: Number of the unit; `NO_UNIT` where it is not of one.
        number: Of the exchange within the unit's program: its own, or that which comes next.
        waits_for: If queued, one of `WAITS`.
        size_bytes: On the wire, what this rank sends.
        peers: On the wire, how many ranks it sends to or hears from.
        sent_s: On the wire, when the last byte had been handed to the network; None if unknown.
        need: If ready, the unit's number among those of its step in the order in which the next
            forward needs them.
        parameters: If ready, the names of all parameters in the unit.
        cpu_s: Where a thread computed, its time on a core; None if unknown.
        core_s: Where a thread computed or waited, how long it was ready to run and had no core;
            None if unknown.
        calls_s: If training, the time on a core within calls of this package.
        exchanges: On the wire, for how many exchanges it stands.
        stride: By how much the numbers of these differ.
    """

    stage: str
    name: str
    step: int
    started_s: float
    seconds: float
    unit: int = NO_UNIT
    number: int = 0
    waits_for: str = ""
    size_bytes: int = 0
    peers: int = 0
    sent_s: float | None = None
    need: int = 0
    parameters: tuple[str, ...] = ()
    cpu_s: float | None = None
    core_s: float | None = None
    calls_s: float = 0.0
    exchanges: int = 1
    stride: int = 1

    @property
    def ended_s(self) -> float:
        """When it ended."""
        return self.started_s + self.seconds


@dataclass(frozen=True)
class Trace:
    """What one rank recorded.

    Attributes:
        rank: Which rank it was when it began to record.
        size: Of how many ranks.
        unix_s: Unix time, by this rank's clock, at the zero of the times here.
        spans: In the order in which they ended, or nearly so.
        steps: When each step began, in order; steps may be missing, and come again after a failure.
        ended_s: When recording ended.
        dropped_steps: How many of the first steps there was no room for.
        dropped_spans: For how many later spans there was none either.
    """

    rank: int
    size: int
    unix_s: float
    spans: tuple[Span, ...]
    steps: tuple[tuple[int, float], ...]
    ended_s: float
    dropped_steps: int = 0
    dropped_spans: int = 0
