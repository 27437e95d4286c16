"""Aggregation: what a server does with one shard, from the first push of a step to its answers.

It has neither threads nor locks: everything is called on the driver's thread. Payloads are kept
until all of a step are there, and then added in the order of workers; steps are taken in their
order. So neither a bit of the answer nor one of the residual depends on what came first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from compressa.aggregators.base import StepContext
from compressa.collectives.base import Compute, Exchange, Program
from compressa.errors import PayloadError
from compressa.parameter_server.coding import ShardCoder
from compressa.parameter_server.job import Placement
from compressa.parameter_server.keys import Shard
from compressa.parameter_server.programs import Programs
from compressa.parameter_server.protocol import LEAD_STEPS, REMEMBERED_STEPS, Units, unwrapped

Answer = Callable[[int, int, torch.Tensor, int], None]
"""(worker, step, payload, most bytes): what to do with the answer to a pull."""


@dataclass
class _Step:
    """A step that some workers have not pushed yet."""

    room: dict[int, torch.Tensor]
    pushed: dict[int, torch.Tensor] = field(default_factory=dict)


class ShardAggregation:
    """One shard on its server.

    Args:
        shard: The shard.
        coder: The server's.
        placement: Who pushes.
        units: Names of messages.
        programs: Carries out what it asks for.
        first_step: The first step that is pushed.
        epoch: Of the transport.
        answer: Called for each pull, when the step is complete.
    """

    def __init__(
        self,
        shard: Shard,
        coder: ShardCoder,
        placement: Placement,
        units: Units,
        programs: Programs,
        first_step: int,
        epoch: int,
        answer: Answer,
    ) -> None:
        self.shard, self._coder = shard, coder
        self._workers = placement.workers
        self._unit, self._programs, self._epoch = units.push(shard), programs, epoch
        self._answer = answer
        self._remote = {w: r for w, r in enumerate(self._workers) if r != programs.rank}
        self._pushed = [first_step - 1] * len(self._workers)
        self._pulled = [first_step - 1] * len(self._workers)
        self._complete = first_step - 1
        self._open: dict[int, _Step] = {}
        self._answers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # room, filled front
        self._waiting: dict[int, list[int]] = {}
        self._idle_room: list[dict[int, torch.Tensor]] = []
        self._idle_answers: list[torch.Tensor] = []
        self._busy = False

    def announce(self, worker: int, wired_step: int) -> int:
        """A worker will push a step: with the first one's begins the wait for the others.

        Args:
            worker: Number of the worker.
            wired_step: The step, modulo 2^32.

        Returns:
            The step.

        Raises:
            PayloadError: It is not the step that is due from it.
        """
        due = self._pushed[worker] + 1
        if unwrapped(wired_step, due) != due or due > self._complete + 1 + LEAD_STEPS:
            raise self._refusal(worker, f"pushes step {wired_step}", f"{due} is due")
        self._pushed[worker] = due
        # All payloads of a step may be there before its last announcement.
        if due > self._complete and due not in self._open:
            self._open[due] = _Step(self._idle_room.pop() if self._idle_room else self._room())
            if self._remote:
                self._programs.start(
                    self._receive(due), f"push of {self._what}", step=due, unit=self._unit
                )
        return due

    def take(self, worker: int, step: int, payload: torch.Tensor) -> None:
        """Take what a worker has pushed.

        Args:
            worker: Number of the worker.
            step: As `announce` returned it.
            payload: uint8[length]; lent until the step is complete.
        """
        self._open[step].pushed[worker] = payload
        self._go_on()

    def ask(self, worker: int, wired_step: int) -> None:
        """Answer a pull, now or when its step is complete.

        Args:
            worker: Number of the worker.
            wired_step: The step, modulo 2^32.

        Raises:
            PayloadError: The worker can not ask for that step, or not any more.
        """
        pushed = self._pushed[worker]
        step = unwrapped(wired_step, pushed)
        known = max(pushed, self._complete)  # its payload may be there before it says so
        low = max(self._pulled[worker], known - REMEMBERED_STEPS)
        if not low < step <= pushed:
            due = f"it has pushed up to {known} and pulled up to {self._pulled[worker]}"
            raise self._refusal(worker, f"pulls step {wired_step}", due)
        self._pulled[worker] = step
        if step <= self._complete:
            self._answer(worker, step, self._answers[step][1], self.most_bytes)
        else:
            self._waiting.setdefault(step, []).append(worker)

    @property
    def most_bytes(self) -> int:
        """Of a payload, in either direction."""
        return self._coder.wire_bytes

    @property
    def _what(self) -> str:
        return f"key {self.shard.segment.name!r}"

    def _refusal(self, worker: int, what: str, due: str) -> PayloadError:
        rank = self._workers[worker]
        return PayloadError(f"rank {rank} {what} of {self._what}, where {due}")

    def _room(self) -> dict[int, torch.Tensor]:
        return {rank: self._coder.buffer() for rank in self._remote.values()}

    def _receive(self, step: int) -> Program[None]:
        """Take what all workers of other ranks push."""
        received = yield Exchange({}, self._open[step].room, self._coder.exact)
        for worker, rank in self._remote.items():
            self._open[step].pushed[worker] = received[rank]
        self._go_on()

    def _go_on(self) -> None:
        """Add up the next step, if all of it is there."""
        step = self._complete + 1
        pushed = self._open[step].pushed if step in self._open else {}
        if not self._busy and len(pushed) == len(self._workers):
            self._busy = True
            payloads = [pushed[worker] for worker in range(len(self._workers))]
            self._programs.start(self._add_up(step, payloads), f"sum of {self._what}", step=step)

    def _add_up(self, step: int, payloads: Sequence[torch.Tensor]) -> Program[None]:
        room = self._idle_answers.pop() if self._idle_answers else self._coder.buffer()
        context = StepContext(step, self._epoch)
        answer = yield Compute(lambda: self._coder.aggregate(payloads, context, room), "decode")
        self._finish(step, room, answer)

    def _finish(self, step: int, room: torch.Tensor, answer: torch.Tensor) -> None:
        """Answer those who wait, and let go of what nobody can ask for any more."""
        self._idle_room.append(self._open.pop(step).room)
        self._answers[step] = (room, answer)
        self._complete, self._busy = step, False
        for worker in sorted(self._waiting.pop(step, []), key=self._turn_of):
            self._answer(worker, step, answer, self.most_bytes)
        forgotten = self._answers.pop(step - REMEMBERED_STEPS, None)
        if forgotten is not None:
            self._idle_answers.append(forgotten[0])
        self._go_on()

    def _turn_of(self, worker: int) -> int:
        """Servers begin with different workers, so that not all answer the same one at first."""
        return (worker - self.shard.server - 1) % len(self._workers)
