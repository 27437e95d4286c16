"""Timeline: what the engine tells the tracer of each unit's way; nothing while that is off."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.engine.driver import Task
from compressa.engine.phase import Phase
from compressa.tracing import LEFT, Span, Tracer
from compressa.transports.base import Key

_STAGES = {"encode": "compress", "decode": "decompress"}
_EVERYTHING = "all gradients"


class Timeline:
    """Turns what happens to tasks into spans.

    Args:
        tracer: What records them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._phase: Phase | None = None
        self._place: list[int] = []
        self._names: list[tuple[str, ...]] = []
        self._step = -1
        self._first_s: dict[int, float] = {}  # of the step's units

    def follow(self, phase: Phase, need_s: Sequence[float] = ()) -> None:
        """Have units of a phase from now on, between two steps.

        Args:
            phase: What is in force.
            need_s: By unit, when the next forward needs it; if not given, the last that backward
                readies is needed first.
        """
        self._phase = phase
        count = len(phase.units)
        needs = need_s or [0.0] * count
        self._place = [0] * count
        for place, unit in enumerate(sorted(range(count), key=lambda unit: (needs[unit], -unit))):
            self._place[unit] = place
        layouts = [unit.layout for unit in phase.units]
        self._names = [tuple(s.parameter.name for s in layout.segments) for layout in layouts]

    def arrived(self, step: int, names: Collection[str], complete: Collection[int]) -> None:
        """Note that gradients have come, and that with them units are complete."""
        if not self.tracer.on or self._phase is None:
            return
        now_s = time.perf_counter()
        if step != self._step:
            self._step, self._first_s = step, {}
        for name in names:
            for unit in self._phase.units_of[name]:
                self._first_s.setdefault(unit, now_s)
        for unit in complete:
            first_s = self._first_s[unit]
            self.tracer.add(
                Span(
                    "ready",
                    self._phase.units[unit].layout.name,
                    step,
                    first_s,
                    now_s - first_s,
                    unit,
                    need=self._place[unit],
                    parameters=self._names[unit],
                )
            )

    def computed(self, task: Task, stage: str, started_s: float, seconds: float) -> None:
        """Note that a task has computed, after it had waited for a thread."""
        if self.tracer.on:
            track = _STAGES[stage]
            self._queued(task, started_s, track)
            self.tracer.add(
                Span(track, task.name, task.step, started_s, seconds, task.unit, task.stage)
            )

    def carried(self, task: Task, operation: Operation, launched_s: float, seconds: float) -> None:
        """Note that a task's exchange is done, after it had waited to be launched."""
        if self.tracer.on:
            self._queued(task, launched_s, "turn")
            size_bytes, peers = self._load(operation)
            self.tracer.add(
                Span(
                    "wire",
                    task.name,
                    task.step,
                    launched_s,
                    seconds,
                    task.unit,
                    task.stage,
                    size_bytes=size_bytes,
                    peers=peers,
                )
            )

    def left(self, key: Key, first_s: float, last_s: float) -> None:
        """Note when the first and the last byte of a message have left; from any thread."""
        if self.tracer.on:
            seconds = last_s - first_s
            self.tracer.add(Span(LEFT, "", key.step, first_s, seconds, key.unit, key.stage))

    def waited(self, step: int, started_s: float, seconds: float) -> None:
        """Note that the training thread has waited for all gradients of a step."""
        self.tracer.span("wait", _EVERYTHING, step, started_s, seconds)

    def _queued(self, task: Task, until_s: float, waits_for: str) -> None:
        seconds = until_s - task.waiting_since_s
        self.tracer.add(
            Span(
                "queued",
                task.name,
                task.step,
                task.waiting_since_s,
                seconds,
                task.unit,
                task.stage,
                waits_for,
            )
        )

    def _load(self, operation: Operation) -> tuple[int, int]:
        """How many bytes an operation sends, and how many ranks it is with."""
        if isinstance(operation, Exchange):
            return operation.outgoing_bytes, len({*operation.outgoing, *operation.incoming})
        assert isinstance(operation, BackendAllReduce)
        return operation.tensor.nbytes, self.tracer.size - 1
