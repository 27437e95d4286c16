"""Driver: advances many programs at once over one transport.

It is itself without threads and clocks: whoever owns it calls its methods, one at a time, and
gives it functions to compute with and to tell the time. The engine runs one on its
communication thread; the loopback runs one per rank on a virtual clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from compressa.collectives.base import (
    BackendAllReduce,
    Compute,
    Exchange,
    LoweredSum,
    Operation,
    SideBySide,
)
from compressa.engine.control.waits import Wait
from compressa.engine.device_stream import DeviceStream
from compressa.engine.sharing.gate import Gate
from compressa.engine.task import Task, at, described
from compressa.errors import CompressaError, Timeout
from compressa.schedulers import Name, Plan
from compressa.transports.base import Done, Key, Transport

ComputeDone = Callable[[Any, BaseException | None], None]


ComputeIn = Callable[[Task, Compute, ComputeDone], None]
Carried = Callable[[Task, Operation, float, float], None]


@dataclass
class _OrderedQueue:
    """Holds ordered operations back until all that the plan puts before them are launched."""

    order: Sequence[tuple[int, int]] = ()
    step: int = -1
    position: int = 0
    held: dict[Key, tuple[Task, Operation]] = field(default_factory=dict)

    def pop_next(self) -> tuple[Task, Operation] | None:
        """Return what may be launched now, if it is here."""
        if self.position == len(self.order):
            self.step, self.position = self.step + 1, 0
        if not self.order:
            return None
        item = self.held.pop(Key(self.step, *self.order[self.position]), None)
        if item is not None:
            self.position += 1
        return item


class Driver:
    """Carries out programs' operations.

    Its methods are called one at a time, but for `waits`, which is for any thread.

    Where the transport is early, and a device still waits for what it has reported, programs take
    turns: what one makes of its result is given to the device before that waits for the next
    result. Else what has come would wait there for what has not.

    Args:
        transport: Carries exchanges.
        compute: Runs a `Compute` and calls back with its result or error.
        post: Has a function called later, one at a time with all other calls to this driver;
            transports call back from their own threads.
        now_s: Tells the time.
        deadline_s: Longest wait for an exchange.
        device_stream: What computations work on; the CPU's if not given. Its main stream is the
            current one of whoever calls.
    """

    def __init__(
        self,
        transport: Transport,
        compute: ComputeIn,
        post: Callable[[Callable[[], None]], None],
        now_s: Callable[[], float],
        deadline_s: float,
        device_stream: DeviceStream | None = None,
    ) -> None:
        self._transport = transport
        self._early = transport.early
        self._compute = compute
        self._post = post
        self._now_s = now_s
        self._deadline_s = deadline_s
        self._device_stream = device_stream or DeviceStream()
        self._tasks: dict[Task, None] = {}  # in the order in which they began
        self._step = -1
        self._plan = Plan(())
        self._ordered = _OrderedQueue()
        self._gathered: dict[tuple[int, tuple[Name, ...]], list[tuple[Task, Operation]]] = {}
        self._gate: Gate | None = None
        self._reported: deque[tuple[Task, Operation, Any]] = deque()
        self._landing: Task | None = None
        self._observe: Carried = lambda task, operation, launched_s, seconds: None

    def follow(self, plan: Plan, ordered: Sequence[tuple[int, int]]) -> None:
        """Follow a plan from its first step on.

        Args:
            plan: The total order.
            ordered: The part of it whose operations must be launched in order.
        """
        self._plan = plan
        self._ordered = _OrderedQueue(ordered, plan.first_step)

    def observe(self, carried: Carried) -> None:
        """Have a function called with each finished exchange.

        Args:
            carried: Gets the task, the operation, when it was launched, and its duration in
                seconds; `Task.idle_since_s` still says from when on it had waited for that.
        """
        self._observe = carried

    def pass_through(self, gate: Gate | None) -> None:
        """Have exchanges begin when a gate lets them; None for at once. Before the first one."""
        self._gate = gate

    def start(self, task: Task) -> None:
        """Begin a program: its first operation is begun in this call.

        Args:
            task: `finished` may be called in this call. Several may have one unit and step if their
                stages differ.
        """
        self._tasks[task] = None
        self._step = task.step
        self._advance(task, None)

    def fail(self, error: BaseException) -> None:
        """End all programs: each is closed, and its `finished` called with the error.

        The transport is not told; what it reports later of these programs counts for nothing.
        """
        tasks, self._tasks = list(self._tasks), {}
        self._ordered.held.clear()
        self._gathered.clear()
        self._reported.clear()
        self._landing = None
        for task in tasks:
            task.program.close()
            task.finished(error)

    @property
    def position(self) -> str:
        """Where this rank is, for people: in which stage of which unit and step."""
        who = f"rank {self._transport.rank} was"
        # A server waits for requests without end, wherever it is.
        busy = [task for task in self._tasks if task.deadline_from_s != math.inf]
        for task in sorted(busy, key=lambda task: task.deadline_from_s is None):
            return f"{who} in {described(task)}"
        return f"{who} {'before its first step' if self._step < 0 else f'after step {self._step}'}"

    def waits(self) -> list[Wait]:
        """Return what exchanges under way wait for, the longest wait first; from any thread."""
        now = self._now_s()
        others = tuple(r for r in range(self._transport.size) if r != self._transport.rank)
        tasks = [(task, task.deadline_from_s) for task in list(self._tasks)]
        begun = [(task, s) for task, s in tasks if s is not None and s != math.inf]
        return [
            Wait(
                f"{task.step}/{task.unit}",
                described(task),
                tuple(self._transport.missing(task.key)) or others,  # a sum of the backend's
                now - since_s,
            )
            for task, since_s in sorted(begun, key=lambda item: item[1])
        ]

    def excuse(self, seconds: float) -> None:
        """Let all exchanges under way take so many seconds longer: this process did not run."""
        for task in self._tasks:
            if task.deadline_from_s is not None:
                task.deadline_from_s += seconds

    def due_s(self) -> float:
        """Return when `expired` may first have something to tell, whatever is started until then.

        Of what could begin already.
        """
        since_s = (task.deadline_from_s for task in self._tasks)
        first_s = min((s for s in since_s if s is not None), default=math.inf)
        return min(first_s, self._now_s()) + self._deadline_s

    def expired(self, now_s: float) -> CompressaError | None:
        """Return a `Timeout` if an exchange has waited for longer than the deadline; else None.

        It names the ranks that are missing, or nobody where a backend's sum does not tell. What a
        device has not come to yet has all its time before it. Where the transport is early, it
        alone knows when a device could have begun, and sees to that.

        Args:
            now_s: The time by which that is judged; what came before it has been excused.
        """
        if self._early:
            return None
        for task in self._tasks:
            if task.deadline_from_s is None or task.awaited is None:
                continue
            if not self._transport.begun(task.awaited):
                task.deadline_from_s = now_s + _grace_s(task.awaited)
            elif now_s - task.deadline_from_s > self._deadline_s:
                ranks = tuple(self._transport.missing(task.key))
                who = f"ranks {', '.join(map(str, ranks))}" if ranks else "the backend's sum"
                return Timeout(
                    ranks,
                    f"rank {self._transport.rank} waited {self._deadline_s:g} s for {who} in "
                    f"{described(task)}; if a rank may be late by more, raise exchange.deadline_s",
                )
        return None

    def _advance(self, task: Task, value: Any) -> None:
        try:
            with at(self._device_stream, task):
                operation = task.program.send(value)
        except StopIteration:
            self._finish(task, None)
        except CompressaError as error:
            self._finish(task, error)
        else:
            self._perform(task, operation)

    def _finish(self, task: Task, error: BaseException | None) -> None:
        if task in self._tasks:
            del self._tasks[task]
            if task.ahead:  # nothing has come for it
                self._leave(task)
                self._join(task)
            task.finished(error)
        if self._landing is task:
            self._landed()

    def _perform(self, task: Task, operation: Operation) -> None:
        if isinstance(operation, Compute):
            self._compute(task, operation, partial(self._computed, task))
            return
        if self._landing is task:
            self._landed()
        if isinstance(operation, SideBySide):
            self._spread(task, operation)
        elif self._transport.ordered(operation):
            self._ordered.held[task.key] = (task, operation)
            self._launch_ordered()
        elif (group := self._plan.mates.get((task.unit, task.stage))) is not None:
            self._gather(task, operation, group)
        else:
            self._launch(task, operation)

    def _gather(self, task: Task, operation: Operation, group: tuple[Name, ...]) -> None:
        """Launch, with others, what leaves in one message with them when all of them are here."""
        gathered = self._gathered.setdefault((task.step, group), [])
        gathered.append((task, operation))
        if len(gathered) == len(group):
            del self._gathered[task.step, group]
            with self._transport.batched():
                for item in gathered:
                    self._launch(*item)

    def _spread(self, task: Task, operation: SideBySide) -> None:
        """Start programs side by side; the first stages of all come before the second of any."""
        first, count = task.stage, len(operation.programs)
        task.stage += operation.exchanges * task.stride
        under_way = set(range(count))

        def finished(index: int, error: BaseException | None) -> None:
            under_way.discard(index)
            if task in self._tasks and (error is not None or not under_way):
                task.ahead, task.idle_since_s = False, self._now_s()
                self._computed(task, None, error)

        for index, program in enumerate(operation.programs):
            if task in self._tasks:
                part = replace(task, program=program, finished=partial(finished, index))
                part.stage = first + index * task.stride
                part.stride = count * task.stride
                self.start(part)
        if not count:
            self._advance(task, None)

    def _computed(self, task: Task, value: Any, error: BaseException | None) -> None:
        if task not in self._tasks:
            return
        if error is not None:
            task.program.close()
            self._finish(task, error)
        else:
            self._advance(task, value)

    def _launch_ordered(self) -> None:
        while (item := self._ordered.pop_next()) is not None:
            self._launch(*item)

    def _launch(self, task: Task, operation: Operation) -> None:
        if self._gate is None:
            self._begin(task, operation)
        else:
            self._gate.enter(task.step, partial(self._begin, task, operation))

    def _begin(self, task: Task, operation: Operation) -> None:
        if task not in self._tasks:
            return  # all has failed while it was held back
        started_s = self._now_s()
        task.awaited, task.deadline_from_s = operation, started_s + _grace_s(operation)
        done = partial(self._done, task, operation, started_s)
        try:
            with at(self._device_stream, task):
                self._hand_over(task, operation, done)
        except CompressaError as error:
            self._ordered.order = ()  # what comes after it would meet the wrong partner
            self._finish(task, error)
            return
        if task.ahead:
            self._leave(task)

    def _hand_over(self, task: Task, operation: Operation, done: Done) -> None:
        """Give an exchange to the transport."""
        priority = self._plan.priorities.get((task.unit, task.stage), 0)
        if isinstance(operation, Exchange):
            self._transport.exchange(task.key, operation, priority, done)
        elif isinstance(operation, LoweredSum):
            self._transport.sum(task.key, task.stride, operation, priority, done)
        elif isinstance(operation, BackendAllReduce):
            self._transport.all_reduce(operation, done)

    def _leave(self, task: Task) -> None:
        """Note what a task has done ahead."""
        with self._device_stream.ahead():
            task.left = self._device_stream.mark(())

    def _join(self, task: Task) -> None:
        """Have a task go on on the main stream, after what it has done ahead."""
        self._device_stream.after([task.left])
        task.ahead, task.left = False, None

    def _done(self, task: Task, operation: Operation, started_s: float, result: Any) -> None:
        """An exchange is done; from any thread, or before its launch has returned."""
        self._post(partial(self._exchanged, task, operation, started_s, result))

    def _exchanged(self, task: Task, operation: Operation, started_s: float, result: Any) -> None:
        if task not in self._tasks:
            return
        task.deadline_from_s = None
        if isinstance(result, CompressaError):
            task.program.close()
            self._finish(task, result)
            return
        ended_s = self._now_s()
        self._observe(task, operation, started_s, ended_s - started_s)
        task.idle_since_s = ended_s
        task.stage += task.stride * operation.exchanges
        if task.ahead:
            self._join(task)
        if self._early:
            self._reported.append((task, operation, result))
            self._land()
        else:
            self._advance(task, result)

    def _land(self) -> None:
        """Go on with the next program that has a result, unless one is at it."""
        while self._reported and self._landing is None:
            task, operation, result = self._reported.popleft()
            if task in self._tasks:
                self._landing = task
                self._transport.land(operation)
                self._advance(task, result)

    def _landed(self) -> None:
        """The program that was at its result has made of it what it can."""
        self._landing = None
        self._post(self._land)


def _grace_s(operation: Operation) -> float:
    """How long an operation may take beyond the deadline."""
    return operation.grace_s if isinstance(operation, Exchange) else 0.0
