"""SimulatedRank: one rank's training, on the virtual clock.

It computes, and waits for units, as a training does; its driver carries out their programs, as the
engine's does; its codec threads encode and decode, one thing at a time each.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from compressa.collectives.base import Compute, Operation
from compressa.engine.driver import ComputeDone, Driver
from compressa.engine.task import Task
from compressa.simulation.job import Job
from compressa.simulation.network import PhantomTransport, received_bytes
from compressa.simulation.phantoms import load_of, made, phantom_program
from compressa.simulation.spans import Spans
from compressa.transports.loopback import VirtualClock

_LEAST_PACE = 0.1


class Computing(NamedTuple):
    """The training computes for so long."""

    seconds: float


class Waiting(NamedTuple):
    """The training waits for a unit, to use a parameter; for all of them, if it has no name."""

    unit: int
    name: str


class Threads:
    """The codec threads of a rank: so many computations at a time, in the order of submission.

    Args:
        clock: The clock.
        count: How many there are.
    """

    def __init__(self, clock: VirtualClock, count: int) -> None:
        self._clock = clock
        self._free_s = [0.0] * count

    def submit(self, seconds: float, ended: Callable[[float], None]) -> None:
        """Have a thread compute for so long; call back at its end with when it began.

        Args:
            seconds: For how long.
            ended: Called on the clock at its end, with the time in seconds at which it began.
        """
        started_s = max(self._clock.now_s, self._free_s[0])
        heapq.heapreplace(self._free_s, started_s + seconds)
        self._clock.at(started_s + seconds, partial(ended, started_s))


class SimulatedRank:
    """One rank.

    Args:
        job: What all ranks do.
        transport: Its end of the network.
        clock: The network's.
        spans: What notes what it does, if anything.

    Attributes:
        begun_s: By step, when its backward began; the last one is not run.
        waited_s: By step, for how long the training waited.
        done_s: By unit, when it was done in the last step, counted from that step's beginning.
    """

    def __init__(
        self, job: Job, transport: PhantomTransport, clock: VirtualClock, spans: Spans | None
    ) -> None:
        self.begun_s: list[float] = []
        self.waited_s: list[float] = []
        self.done_s = [0.0] * len(job.units)
        self._job = job
        self._clock = clock
        self._spans = spans
        self._rank = transport.rank
        self._world = job.scenario.world(transport.rank, job.hosts)
        self._sums = job.scenario.sums(transport)
        self._threads = Threads(clock, job.scenario.file.threads)
        self._pace = 1.0
        self._unfinished: set[int] = set()
        self._waiting: Waiting | None = None
        self._blocked_since_s = 0.0
        self._received: dict[Task, int] = {}
        self._driver = Driver(
            transport, self._compute, partial(clock.at, 0.0), self._now_s, math.inf
        )
        self._driver.follow(*job.step_plan)
        self._driver.observe(self._carried)
        if spans is not None:
            transport.observe(spans.on_sent)
        self._training = self._train()

    def start(self) -> None:
        """Begin to train."""
        self._go_on()

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return len(self.begun_s) > self._job.scenario.steps

    def _train(self) -> Iterator[Computing | Waiting]:
        """All steps, one after the other; a step begins with its backward."""
        job = self._job
        for step in range(job.scenario.steps):
            self._begin(step)
            yield Computing(job.backward_s)
            if not job.scenario.overlap:
                for unit in range(len(job.units)):
                    yield Waiting(unit, "all gradients")
            yield Computing(job.before_s)
            now_s = 0.0
            for unit in job.by_need if job.scenario.overlap else ():
                need_s = min(job.units[unit].times.need_s, job.forward_s)
                yield Computing(need_s - now_s)
                yield Waiting(unit, job.units[unit].parameters[0])
                now_s = need_s
            yield Computing(job.forward_s - now_s + job.after_s)
        self._note_beginning(job.scenario.steps)

    def _begin(self, step: int) -> None:
        """Begin a step: its units become ready."""
        job, scenario = self._job, self._job.scenario
        if scenario.jitter:
            draw = random.Random(f"{scenario.seed}/{self._rank}/{step}").gauss(1.0, scenario.jitter)
            self._pace = max(draw, _LEAST_PACE)
        self._note_beginning(step)
        self.waited_s.append(0.0)
        self._unfinished = set(range(len(job.units)))
        for index, unit in enumerate(job.units):
            ready_s = min(unit.times.ready_s, job.backward_s) * self._pace
            self._clock.at(self._clock.now_s + ready_s, partial(self._ready, step, index))

    def _note_beginning(self, step: int) -> None:
        self.begun_s.append(self._clock.now_s)
        if self._spans is not None:
            self._spans.began(step, self._clock.now_s)

    def _ready(self, step: int, index: int) -> None:
        unit = self._job.units[index]
        if self._spans is not None:
            self._spans.ready(step, index, self._clock.now_s)
        program = phantom_program(unit.rounds, self._world, self._sums)
        task = Task(index, unit.name, step, program, partial(self._finished, index))
        task.idle_since_s = self._clock.now_s
        self._driver.start(task)

    def _finished(self, index: int, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.done_s[index] = self._clock.now_s - self.begun_s[-1]
        self._unfinished.discard(index)
        waiting = self._waiting
        if waiting is not None and waiting.unit == index:
            self._waiting = None
            self.waited_s[-1] += self._clock.now_s - self._blocked_since_s
            if self._spans is not None:
                step, since_s = len(self.begun_s) - 1, self._blocked_since_s
                self._spans.waited(step, waiting.name, since_s, self._clock.now_s)
            self._go_on()

    def _go_on(self) -> None:
        """Train until there is something to wait for."""
        for act in self._training:
            if isinstance(act, Computing):
                if act.seconds > 0:
                    ended_s = self._clock.now_s + act.seconds * self._pace
                    self._clock.at(ended_s, self._go_on)
                    return
            elif act.unit in self._unfinished:
                self._waiting, self._blocked_since_s = act, self._clock.now_s
                return

    def _compute(self, task: Task, operation: Compute, done: ComputeDone) -> None:
        """Take the time of the bytes that are worked on, on a codec thread if it is long."""
        value = made(operation)
        load_bytes = load_of(operation, value, self._received.pop(task, 0))
        seconds = load_bytes * self._job.units[task.unit].rates[operation.stage] * self._pace

        def ended(started_s: float) -> None:
            if self._spans is not None:
                self._spans.computed(task, operation.stage, started_s, self._clock.now_s)
            task.idle_since_s = self._clock.now_s
            done(value, None)

        if not seconds:
            ended(self._clock.now_s)
        elif operation.quick:
            self._clock.at(self._clock.now_s + seconds, partial(ended, self._clock.now_s))
        else:
            self._threads.submit(seconds, ended)

    def _carried(self, task: Task, operation: Operation, launched_s: float, seconds: float) -> None:
        self._received[task] = received_bytes(operation)
        if self._spans is not None:
            self._spans.carried(task, operation, launched_s, seconds)

    def _now_s(self) -> float:
        return self._clock.now_s
