"""ShardCentre: a shard of values at its server, which workers update without all meeting.

A worker sends an update u_i (what its optimizer did), and asks for the values. With the weights w
of `Consistency`

    x <- x + w C(u_i + e_i)        as it comes; with s = 0 of all workers together, in their order
    answer C(x - h_i);  h_i <- h_i + that

where e_i is the worker's residual, and h_i what it holds of x, of which the server has a copy. So
what an answer lacks is in the next one. A codec that loses nothing sends x itself. With delay
compensation lambda, u_i of a step of SGD by the rate r becomes u_i - (lambda / r) u_i^2 (x - h_i):
of first order what the gradient would have been at x (Zheng et al., ICML 2017).

Of statistics (a key that is `exact`) a worker that does not step together with all others sends
what they are, v_i, and x <- x + w (v_i - x): no order of updates leads beyond what workers have.

It has neither threads nor locks: everything is called on the driver's thread, and what is computed
goes one by one, in the order in which it came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from compressa.aggregators.base import StepContext
from compressa.collectives.base import Compute, Exchange, Program
from compressa.errors import PayloadError, Timeout
from compressa.parameter_server.aggregation import Answer
from compressa.parameter_server.answering import AnswerCoder
from compressa.parameter_server.clocks import Clocks, Consistency
from compressa.parameter_server.coding import ShardCoder
from compressa.parameter_server.job import Placement
from compressa.parameter_server.keys import Shard
from compressa.parameter_server.programs import Programs
from compressa.parameter_server.protocol import MOST_AHEAD, Units, unwrapped


@dataclass
class _Update:
    """What a worker has pushed."""

    worker: int
    step: int
    payload: torch.Tensor
    rate: float


class ShardCentre:
    """One shard on its server.

    Args:
        shard: The shard.
        coders: Decodes updates, and encodes answers.
        placement: Who the workers are.
        units: Names of messages.
        programs: Carries out what it asks for.
        first_step: The first step that is pushed.
        epoch: Of the transport.
        answer: Called for each pull.
        values: x at first, float32, 1-D; the centre's from now on.
        consistency: Who waits for whom.
        deadline_s: For how long a worker may wait for the others.
    """

    def __init__(
        self,
        shard: Shard,
        coders: tuple[ShardCoder, AnswerCoder],
        placement: Placement,
        units: Units,
        programs: Programs,
        first_step: int,
        epoch: int,
        answer: Answer,
        values: torch.Tensor,
        consistency: Consistency,
        deadline_s: float,
    ) -> None:
        self.shard, self.values = shard, values
        self._updates, self._answers = coders
        self._ranks = placement.workers
        self._units, self._programs, self._epoch = units, programs, epoch
        self._answer, self._rule, self._deadline_s = answer, consistency, deadline_s
        count = len(placement.workers)
        self._clocks = Clocks(count, consistency, first_step)
        self._pushed = [first_step - 1] * count
        self._asked = [first_step - 1] * count
        self._rates = [1.0] * count
        keeps = not coders[1].lossless or bool(consistency.delay_compensation)
        self._views = [values.clone() if keeps else values for _ in range(count)]
        self._seen = [0] * count  # how many updates were taken when each was answered last
        self._taken = 0
        self._whole = shard.segment.parameter.exact and consistency.staleness > 0
        self._begun = first_step - 1  # s = 0: the last step whose updates are added
        self._rooms = {
            w: coders[0].buffer() for w, r in enumerate(self._ranks) if r != programs.rank
        }
        self._answer_rooms = [coders[1].buffer() for _ in range(count)]
        self._early: dict[int, dict[int, _Update]] = {}  # s = 0: by step and worker
        self._jobs: deque[tuple[str, Callable[[], None], Callable[[], None]]] = deque()
        self._busy = False
        self._unanswered: set[int] = set()
        self._watching, self._moved_s = False, 0.0

    def announce(self, worker: int, wired_step: int, rate: float = 1.0) -> int:
        """A worker will push a step.

        Args:
            worker: Number of the worker.
            wired_step: The step, modulo 2^32.
            rate: By which its optimizer took it.

        Returns:
            The step.

        Raises:
            PayloadError: It is not one that is due from it.
        """
        due = self._pushed[worker] + 1
        step = unwrapped(wired_step, due)
        if not due <= step < due + MOST_AHEAD or worker in self._unanswered:
            raise self._refusal(worker, f"pushes step {wired_step}", f"{due} or later is due")
        self._unanswered.add(worker)
        self._pushed[worker] = step
        self._rates[worker] = rate
        if worker in self._rooms:
            self._programs.start(
                self._receive(worker, step),
                f"push of {self._what}",
                step=step,
                unit=self._units.update(self.shard, worker),
            )
        return step

    def take(self, worker: int, step: int, payload: torch.Tensor) -> None:
        """Take what a worker has pushed.

        Args:
            worker: Number of the worker.
            step: As `announce` returned it.
            payload: uint8[length]; lent until the worker is answered.
        """
        update = _Update(worker, step, payload, self._rates[worker])
        if self._rule.staleness:
            self._queue("update", partial(self._add_stale, update), partial(self._note, [update]))
        elif step <= self._begun:
            self._note([update])  # too late: the others have gone on without it
        else:
            self._early.setdefault(step, {})[worker] = update
            self._add_complete()

    def ask(self, worker: int, wired_step: int) -> None:
        """Answer a pull, now or when the clocks are so far.

        Args:
            worker: Number of the worker.
            wired_step: The step, modulo 2^32.

        Raises:
            PayloadError: It is not the step that the worker has pushed last, or was asked for.
        """
        pushed = self._pushed[worker]
        if unwrapped(wired_step, pushed) != pushed or self._asked[worker] == pushed:
            raise self._refusal(worker, f"pulls step {wired_step}", f"{pushed} was pushed last")
        self._asked[worker] = pushed
        self._begin_wait()
        self._clocks.wait(worker, pushed)
        self._release()

    def meet(self, worker: int) -> None:
        """A worker goes no further until all have come; each is answered with x itself then.

        That counts as a step of all.
        """
        if worker in self._unanswered:
            raise self._refusal(
                worker, "asks to meet", f"step {self._pushed[worker]} is to be pulled"
            )
        self._begin_wait()
        self._clocks.meet(worker)
        self._add_complete()
        self._release()

    def leave(self, worker: int) -> None:
        """A worker does no more steps."""
        self._clocks.leave(worker)
        if self._clocks.workers:
            self._add_complete()
            self._release()

    def restart(self, values: torch.Tensor, step: int) -> None:
        """Keep other values, which all workers hold, after a step; nothing is under way.

        Args:
            values: x, float32, 1-D.
            step: The last step that was done.
        """
        self.values.copy_(values)
        for view in self._views:
            view.copy_(values)
        count = len(self._ranks)
        self._clocks = Clocks(count, self._rule, step + 1)
        self._pushed, self._asked, self._begun = [step] * count, [step] * count, step

    @property
    def _what(self) -> str:
        return f"key {self.shard.segment.name!r}"

    def _refusal(self, worker: int, what: str, due: str) -> PayloadError:
        return PayloadError(f"rank {self._ranks[worker]} {what} of {self._what}, where {due}")

    def _receive(self, worker: int, step: int) -> Program[None]:
        rank, room = self._ranks[worker], self._rooms[worker]
        received = yield Exchange({}, {rank: room}, self._updates.exact)
        self.take(worker, step, received[rank])

    def _queue(self, name: str, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Have something computed after all that was queued before."""
        self._jobs.append((name, work, then))
        if not self._busy:
            self._busy = True
            self._programs.start(self._work_off(), f"{name} of {self._what}", step=self._begun)

    def _work_off(self) -> Program[None]:
        while self._jobs:
            _, work, then = self._jobs.popleft()
            yield Compute(work, "decode")
            then()
        self._busy = False

    def _add_stale(self, update: _Update) -> None:
        """Add an update to values that its worker may not have seen."""
        worker, weight = update.worker, 1.0
        if self._rule.weighting == "mean":
            weight = 1.0 / len(self._ranks)
        elif self._rule.weighting == "staleness":
            weight = 1.0 / (1 + self._taken - self._seen[worker])
        lambda_ = self._rule.delay_compensation
        if self._whole:
            self.values.mul_(1.0 - weight)
        view = self._views[worker] if lambda_ else None
        context = StepContext(update.step, self._epoch)
        compensation = lambda_ / update.rate if update.rate else 0.0
        self._updates.add(update.payload, self.values, weight, context, worker, view, compensation)
        self._taken += 1

    def _add_complete(self) -> None:
        """Add the updates of the next step, if as many as count are there."""
        step = min(self._early, default=0)
        there = self._early.get(step, {})
        counted = there.keys() & set(self._clocks.workers)  # some may have left since
        if not there or len(counted) < self._clocks.counted:
            return
        updates = [there[worker] for worker in sorted(there)]
        del self._early[step]
        self._begun = step

        def add() -> None:
            for update in updates:
                context = StepContext(update.step, self._epoch)
                weight = 1.0 / len(updates)
                self._updates.add(update.payload, self.values, weight, context, update.worker)

        self._queue("sum", add, partial(self._note, updates))

    def _note(self, updates: list[_Update]) -> None:
        """Updates were taken: others may have waited for that."""
        for update in updates:
            self._clocks.advance(update.worker, update.step)
        self._moved_s = self._programs.session.now_s()
        self._release()

    def _release(self) -> None:
        """Answer all who need to wait no longer."""
        for worker, step in self._clocks.released():
            self._queue("answer", *self._answering(worker, step, self._clocks.front))
        if self._clocks.united():
            step = self._clocks.last
            self._begun = step
            for worker in self._clocks.workers:
                due = self._pushed[worker] + 1
                self._pushed[worker] = self._asked[worker] = step
                self._queue("values", *self._answering(worker, due, step, whole=True))

    def _answering(
        self, worker: int, step: int, front: int, *, whole: bool = False
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what encodes an answer, and what sends it."""
        payload = self._answer_rooms[worker]

        def encode() -> None:
            nonlocal payload
            context, room = StepContext(step, self._epoch), self._answer_rooms[worker]
            view = self._views[worker]
            payload = self._answers.encode(self.values, view, context, front, room, whole=whole)
            self._seen[worker] = self._taken

        most_bytes = self._answers.whole_bytes if whole else self._answers.wire_bytes

        def answer() -> None:
            self._unanswered.discard(worker)
            self._answer(worker, step, payload, most_bytes)

        return encode, answer

    def _begin_wait(self) -> None:
        """Somebody waits; if nobody does a step meanwhile, not for longer than the deadline."""
        session = self._programs.session
        if not self._clocks.waiting:
            self._moved_s = session.now_s()
        if not self._watching:
            self._watching = True
            session.call_at(self._moved_s + self._deadline_s, self._look)

    def _look(self) -> None:
        session, late = self._programs.session, self._clocks.late()
        due_s = self._moved_s + self._deadline_s
        self._watching = self._clocks.waiting and session.now_s() < due_s
        if self._watching:
            session.call_at(due_s, self._look)
        elif late:
            ranks = tuple(self._ranks[worker] for worker in late)
            text = f"{self._what}: no worker has done a step within {self._deadline_s:g} s"
            self._programs.fail(Timeout(ranks, f"{text}, and others wait for ranks {ranks}"))
