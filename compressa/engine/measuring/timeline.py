"""Timeline: what the engine tells the tracer of each unit's way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from compressa.collectives.base import BackendAllReduce, Exchange, LoweredSum, Operation
from compressa.engine.measuring.lock_probe import LockProbe
from compressa.engine.measuring.stats import Overlap
from compressa.engine.task import Task
from compressa.engine.units.phase import Phase
from compressa.tracing import CAME, LEFT, Reading, Span, ThreadClock, Tracer, spent
from compressa.transports.base import Key, Transport

_STAGES = {"encode": "compress", "decode": "decompress"}


class _Clocks(threading.local):
    """What each thread knows of its own time.

    Attributes:
        clock: Its clocks; None until it first looks.
        seen: When it had last told of its waits for a core.
        begun: When it began to compute, if it does.
    """

    clock: ThreadClock | None = None
    seen: Reading | None = None
    begun: Reading | None = None

    def read(self) -> Reading:
        if self.clock is None:
            self.clock = ThreadClock()
        return self.clock.read()


class Timeline:
    """Turns what happens to tasks into spans; to be told of it while the tracer is on.

    Args:
        tracer: What records them.
        needs_s: Returns, by unit of the phase in force, when the forward needs it; where that is
            not known, the last that backward readies is needed first.
    """

    def __init__(self, tracer: Tracer, needs_s: Callable[[], Sequence[float]]) -> None:
        self.tracer = tracer
        self._needs_s = needs_s
        self._phase: Phase | None = None
        self._need_numbers: dict[int, int] = {}
        self._names: list[tuple[str, ...]] = []
        self._step = -1
        self._first_s: dict[int, float] = {}  # of the step's units
        self.watched, self._since_s = False, 0.0
        self._clocks = _Clocks()

    def enter(self, phase: Phase) -> None:
        """Have units of a phase from now on, between two steps; before the first as well."""
        self._phase, self._step = phase, -1
        layouts = [unit.layout for unit in phase.units]
        self._names = [tuple(s.parameter.name for s in layout.segments) for layout in layouts]

    def watch(self, transport: Transport) -> None:
        """Have a transport tell of its messages, and a probe of the lock, while the tracer is on.

        To be called between two steps, when that has changed.
        """
        self.watched, self._since_s = self.tracer.on, time.perf_counter()
        transport.observe(self.on_sent if self.watched else None)
        transport.hear(self.on_come if self.watched else None)
        if self.watched:
            LockProbe(self.tracer)

    def arrived(self, step: int, names: Collection[str], complete: Collection[int]) -> None:
        """Note that gradients have come now, and that with them units are complete.

        Args:
            step: Of the gradients.
            names: Of their parameters.
            complete: Numbers of the units; each comes once in a step.
        """
        assert self._phase is not None, "a phase is entered before its steps"
        now_s = time.perf_counter()
        if step != self._step:
            self._step, self._first_s, self._need_numbers = step, {}, self._order()
        for name in names:
            for unit in self._phase.units_of[name]:
                self._first_s.setdefault(unit, now_s)
        for unit in complete:
            first_s = self._first_s.pop(unit)
            self.tracer.add(
                Span(
                    "ready",
                    self._phase.units[unit].name,
                    step,
                    first_s,
                    now_s - first_s,
                    unit,
                    need=self._need_numbers[unit],
                    parameters=self._names[unit],
                )
            )

    def begun(self) -> None:
        """Note that this thread begins to compute for a task; `computed` is told the rest."""
        if self.tracer.on:
            clocks = self._clocks
            clocks.begun = now = clocks.read()
            self._without_core(now)

    def computed(self, task: Task, stage: str, started_s: float, seconds: float) -> None:
        """Note that a task has computed, after it had waited for a thread; from any thread.

        Args:
            task: `idle_since_s` says since when it had waited.
            stage: "encode" or "decode".
            started_s: When it began, on `time.perf_counter`.
            seconds: For how long.
        """
        track = _STAGES[stage]
        self._queued(task, started_s, track)
        clocks = self._clocks
        begun, clocks.begun = clocks.begun, None
        clocks.seen = now = clocks.read()
        cpu_s, core_s = (None, None) if begun is None else spent(begun, now)
        self.tracer.add(
            Span(
                track,
                task.name,
                task.step,
                started_s,
                seconds,
                task.unit,
                task.stage,
                cpu_s=cpu_s,
                core_s=core_s,
            )
        )

    def carried(self, task: Task, operation: Operation, launched_s: float, seconds: float) -> None:
        """Note that a task's exchange is done, after it had waited to be launched; from any thread.

        Args:
            task: `idle_since_s` says since when it had waited.
            operation: What was carried out: an `Exchange` or a `BackendAllReduce`.
            launched_s: When it was launched, on `time.perf_counter`.
            seconds: From then until it was done.
        """
        self._queued(task, launched_s, "turn")
        self._without_core(self._clocks.read())
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
                exchanges=operation.exchanges,
                stride=task.stride,
            )
        )

    def on_sent(self, key: Key, first_s: float, last_s: float) -> None:
        """Note when the first and the last byte of a message have left; see `Transport.observe`."""
        seconds = last_s - first_s
        self.tracer.add(Span(LEFT, "", key.step, first_s, seconds, key.unit, key.stage))

    def on_come(self, key: Key, first_s: float, last_s: float) -> None:
        """Note when the first and the last byte of a message were here; see `Transport.hear`."""
        seconds = last_s - first_s
        self.tracer.add(Span(CAME, "", key.step, first_s, seconds, key.unit, key.stage))

    def decided(self, step: int, overlap: Overlap) -> None:
        """Note how steps are done from one on."""
        if self.tracer.on:
            self.tracer.span("wait", str(overlap), step, time.perf_counter(), 0.0)

    def begin_wait(self) -> None:
        """Note that the training thread is about to wait."""
        if self.tracer.on:
            self.tracer.begin_wait()

    def waited(self, name: str, step: int, started_s: float, seconds: float) -> None:
        """Note that the training thread has waited, and goes on now.

        Args:
            name: For what.
            step: In which step.
            started_s: Since when, on `time.perf_counter`.
            seconds: For how long.
        """
        self.tracer.end_wait(name, step, started_s, seconds)

    def _order(self) -> dict[int, int]:
        """By unit, its number in the order in which the forward needs them."""
        needs_s = self._needs_s()
        order = sorted(range(len(needs_s)), key=lambda unit: (needs_s[unit], -unit))
        return {unit: number for number, unit in enumerate(order)}

    def _queued(self, task: Task, until_s: float, waits_for: str) -> None:
        seconds = until_s - task.idle_since_s
        self.tracer.add(
            Span(
                "queued",
                task.name,
                task.step,
                task.idle_since_s,
                seconds,
                task.unit,
                task.stage,
                waits_for,
            )
        )

    def _without_core(self, now: Reading) -> None:
        """Tell for how long this thread was ready to run without a core since it told so last.

        That is put right before now: mostly it was woken for what it does now.
        """
        seen, self._clocks.seen = self._clocks.seen, now
        if seen is None or seen.at_s < self._since_s:
            return
        core_s = spent(seen, now).core_s
        if core_s:
            name = threading.current_thread().name
            self.tracer.add(Span("core", name, self.tracer.step, now.at_s - core_s, core_s))

    def _load(self, operation: Operation) -> tuple[int, int]:
        """How many bytes an operation sends, and how many ranks it is with."""
        if isinstance(operation, Exchange):
            return operation.outgoing_bytes, len({*operation.outgoing, *operation.incoming})
        if isinstance(operation, LoweredSum):
            return operation.sent_bytes, operation.peers
        assert isinstance(operation, BackendAllReduce)
        return operation.tensor.nbytes, self.tracer.size - 1
