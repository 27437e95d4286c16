"""Shards: one rank's compressed reduce-scatters and all-gathers, in the order of FSDP2's calls.

FSDP2 makes its calls in the same order on every rank, and each when it is due, not once in a step:
a module that is used twice is brought twice, one that is not used is not brought at all. So this is
no step of an `Engine`; each call is a program of its own on a `Session`, with the deadlines, errors
and verdicts that all programs have.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from compressa.aggregators.base import State, StepContext
from compressa.collectives.base import Exchange, Program, SideBySide
from compressa.engine.communication import wrapped
from compressa.engine.device_stream import Mark
from compressa.engine.measuring.profiler import Ledger
from compressa.engine.measuring.stats import Overlap, Stats
from compressa.engine.session import Session
from compressa.errors import CompressaError, StateError, TransportError
from compressa.integrations.fsdp.all_gather import GatheredPart, Gathering
from compressa.integrations.fsdp.reduce_scatter import ReducedPart, Reduction
from compressa.parameters import ParameterInfo
from compressa.schedulers import Transfer


class Sent(NamedTuple):
    """What a kind of call has handed to the network.

    Attributes:
        ledger: Counts payloads and times.
        sent_bytes: With all headers, each byte as often as it travelled.
        messages: How many.
    """

    ledger: Ledger
    sent_bytes: int = 0
    messages: int = 0

    def stats(self) -> Stats:
        """Return it with what the ledger has."""
        return self.ledger.snapshot(self.sent_bytes, self.messages, Overlap())


class Shards:
    """See the module.

    Args:
        session: Open between the ranks that a parameter is cut into; closed with this object.
        state: This rank's residuals.
        parameters: By which the state is named.
        reduced: By group, what its reduce-scatters consist of; empty if they are not compressed.
        gathered: By group, what its all-gathers consist of; likewise.
        gradients: Counts for `reduced`.
        weights: Counts for `gathered`.
        counted: How errors count ranks; nothing where that goes without saying.

    Attributes:
        session: As given.
        state: As given.
        parameters: As given.
        step: Number of the pass that reduces next; one begins when a group is reduced again.
    """

    def __init__(
        self,
        session: Session,
        state: State,
        parameters: Sequence[ParameterInfo],
        reduced: Mapping[int, Sequence[ReducedPart]],
        gathered: Mapping[int, Sequence[GatheredPart]],
        gradients: Ledger,
        weights: Ledger,
        counted: str = "",
    ) -> None:
        self.session, self.state, self.parameters = session, state, tuple(parameters)
        self.step = 0
        self._reduced, self._gathered = reduced, gathered
        self._gradients, self._weights = Sent(gradients), Sent(weights)
        self._calls, self._counted = 0, counted
        self._done: set[int] = set()  # the groups that this pass has reduced
        self._closed = False
        self._ordered = session.transport.ordered(Exchange({}, {}))

    @property
    def next_step(self) -> int:
        """Number of the pass after those that have reduced anything."""
        return self.step + bool(self._done)

    def resume_at(self, step: int) -> None:
        """Have the next pass be of a number, and go on with the residuals of a checkpoint."""
        self._begin_at(step)
        for part in (part for parts in self._reduced.values() for part in parts):
            part.resume()

    def _begin_at(self, step: int) -> None:
        self.step = step
        self._done.clear()

    def reduce_scatter(
        self, group: int, source: torch.Tensor, out: torch.Tensor, weight: float
    ) -> None:
        """Reduce a group's gradients.

        Args:
            group: Its number.
            source: A slice for every rank, side by side.
            out: Receives the own slice's sum times `weight`.
            weight: Such as 1 / P.

        Raises:
            CompressaError: A rank is lost or late, or what it sent is not what is due.
        """
        if group in self._done:
            self._begin_at(self.step + 1)
        self._done.add(group)
        self._gradients.ledger.steps = self.step + 1
        context = StepContext(self.step, self.session.transport.epoch)
        marks: list[Mark] = []
        reduction = Reduction(source, out, weight, context, *self._between([source, out], marks))
        programs = [part.program(reduction) for part in self._reduced[group]]
        self._gradients = self._run(programs, marks, self._gradients)

    def all_gather(self, group: int, out: torch.Tensor) -> None:
        """Bring a group's weights to all.

        Args:
            group: Its number.
            out: A slice for every rank, side by side; has this rank's.

        Raises:
            CompressaError: A rank is lost or late, or what it sent is not what is due.
        """
        self._weights.ledger.steps += 1
        context = StepContext(self._calls, self.session.transport.epoch)
        marks: list[Mark] = []
        gathering = Gathering(out, context, *self._between([out], marks))
        programs = [part.program(gathering) for part in self._gathered[group]]
        self._weights = self._run(programs, marks, self._weights)

    def stats(self) -> tuple[Stats, Stats]:
        """Return what was measured of gradients, and of weights."""
        return self._gradients.stats(), self._weights.stats()

    def check(self, error: CompressaError | None) -> None:
        """Raise an error of this rank, if there is one, on all ranks."""
        if error is not None:
            self.session.fail(error)
            raise error

    def close(self) -> None:
        """Close the session; every later call raises an error."""
        self._closed = True
        self.session.close()

    def _between(self, tensors: Iterable[torch.Tensor], marks: list[Mark]) -> tuple[Any, Any]:
        """Return what orders the device's work on tensors with that of the caller's stream."""
        stream = self.session.device_stream
        ready = stream.mark(tensors)
        return lambda: stream.after([ready]), lambda: marks.append(stream.note())

    def _run(self, programs: Sequence[Program[None]], marks: Sequence[Mark], sent: Sent) -> Sent:
        """Run programs side by side, and wait for them; return what was sent by then."""
        if self._closed:
            raise StateError("this handle is closed; shard the model anew to train it further")
        begun_s, before = time.perf_counter(), self.session.transport.traffic
        self._calls += 1
        if self._ordered:  # all that is planned must be launched, and calls have as many as they do
            stages = range(len(programs))
            self.session.follow([Transfer(0, stage, 0) for stage in stages], stages)
        try:
            self.session.run(_side_by_side(programs))
        except BaseException as error:
            self.session.fail(wrapped(error))
            if self._counted and isinstance(error, TransportError):
                error.locate(self._counted)
            raise
        self.session.device_stream.after(marks)
        sent.ledger.exposed_s += time.perf_counter() - begun_s
        after = self.session.transport.traffic
        return Sent(
            sent.ledger,
            sent.sent_bytes + after.sent_bytes - before.sent_bytes,
            sent.messages + after.messages - before.messages,
        )


def _side_by_side(programs: Sequence[Program[None]]) -> Program[None]:
    if programs:
        yield SideBySide(programs, 1)
