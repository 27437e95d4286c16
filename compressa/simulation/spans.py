"""Spans: what a simulated rank does, as a trace has it; times are the virtual clock's."""

from __future__ import annotations

from typing import Any

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.engine.task import Task
from compressa.simulation.job import Job
from compressa.tracing import Span, Trace
from compressa.transports.base import Key

_STAGES = {"encode": "compress", "decode": "decompress"}


class Spans:
    """Notes one rank's spans; times are seconds on the virtual clock.

    Args:
        job: What is simulated.
        rank: The rank.
    """

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self._rank = rank
        self._spans: list[Span] = []
        self._steps: list[tuple[int, float]] = []
        self._sent: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._need = {unit: number for number, unit in enumerate(job.by_need)}

    def began(self, step: int, now_s: float) -> None:
        """Note that a step begins.

        Args:
            step: Number of the optimizer step.
            now_s: When.
        """
        self._steps.append((step, now_s))

    def ready(self, step: int, unit: int, now_s: float) -> None:
        """Note that backward has made a unit's gradients.

        Args:
            step: Number of the optimizer step.
            unit: Number of the unit.
            now_s: When.
        """
        one = self._job.units[unit]
        need, names = self._need[unit], one.parameters
        self._add("ready", one.name, step, now_s, now_s, unit=unit, need=need, parameters=names)

    def computed(self, task: Task, stage: str, started_s: float, ended_s: float) -> None:
        """Note that a task has computed, after it had waited for a thread.

        Args:
            task: It waited since its `idle_since_s`.
            stage: "encode" or "decode".
            started_s: When it began to compute.
            ended_s: When it ended.
        """
        self._of(task, "queued", task.idle_since_s, started_s, waits_for=_STAGES[stage])
        self._of(task, _STAGES[stage], started_s, ended_s)

    def on_sent(self, key: Key, first_s: float, last_s: float) -> None:
        """Note that a message has left; before `carried` of its exchange.

        Args:
            key: Its name; messages to several peers have the same.
            first_s: When its first byte began to leave.
            last_s: When its last one had left.
        """
        name = (key.step, key.unit, key.stage)
        earlier = self._sent.get(name, (first_s, last_s))
        self._sent[name] = min(earlier[0], first_s), max(earlier[1], last_s)

    def carried(self, task: Task, operation: Operation, launched_s: float, seconds: float) -> None:
        """Note that an exchange is done, after it had waited to be launched, and then to leave.

        Args:
            task: Asked for it; it waited since its `idle_since_s`.
            operation: An `Exchange` or a `BackendAllReduce`.
            launched_s: When the transport was given it.
            seconds: How long it took from then on.
        """
        self._of(task, "queued", task.idle_since_s, launched_s, waits_for="turn")
        began_s, sent_s = self._sent.pop((task.step, task.unit, task.stage), (launched_s, None))
        if sent_s is not None:
            self._of(task, "queued", launched_s, began_s, waits_for="outbox")
        size_bytes, peers = _load(operation, self._job.hosts - 1)
        load = {"size_bytes": size_bytes, "peers": peers, "sent_s": sent_s}
        self._of(task, "wire", began_s, launched_s + seconds, **load)

    def waited(self, step: int, name: str, started_s: float, ended_s: float) -> None:
        """Note that the training has waited for parameters.

        Args:
            step: Number of the optimizer step.
            name: Of the parameter that it waited for; empty for all of them.
            started_s: When it began to wait.
            ended_s: When it went on; nothing is noted if that is not later.
        """
        if ended_s > started_s:
            self._add("wait", name, step, started_s, ended_s)

    def trace(self, ended_s: float) -> Trace:
        """Return all that was noted, of a simulation that ended at `ended_s`."""
        return Trace(
            self._rank, self._job.hosts, 0.0, tuple(self._spans), tuple(self._steps), ended_s
        )

    def _of(self, task: Task, stage: str, began_s: float, ended_s: float, **more: Any) -> None:
        more |= {"unit": task.unit, "number": task.stage}
        self._add(stage, task.name, task.step, began_s, ended_s, **more)

    def _add(
        self, stage: str, name: str, step: int, began_s: float, ended_s: float, **more: Any
    ) -> None:
        self._spans.append(Span(stage, name, step, began_s, ended_s - began_s)._replace(**more))


def _load(operation: Operation, others: int) -> tuple[int, int]:
    """How many bytes an operation sends, and how many ranks it is with."""
    if isinstance(operation, Exchange):
        return operation.outgoing_bytes, len({*operation.outgoing, *operation.incoming})
    assert isinstance(operation, BackendAllReduce)
    return operation.tensor.nbytes, others
