"""Periodic: ranks train by themselves, and meet every so many steps.

All ranks hold the same *anchor*: the parameters that they agreed on last. In a meeting each hands
the difference between its own parameters and the anchor to the engine, which compresses and
averages it, and keeps what was not sent for the next meeting. A *rule* makes the next anchor and
the parameters to go on with from the mean. That is the same on all ranks, to the bit, and so is the
anchor.

Fragments of a model meet one after the other, evenly over the H steps of a round, and a fragment's
mean may be used some steps after it has left; one is on its way at a time.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from compressa.aggregators.base import Merge
from compressa.arrays import carried_over
from compressa.engine.device_stream import Ticket
from compressa.errors import StateError
from compressa.hooks import Handle
from compressa.overlap.opening import trained
from compressa.parameters import ParameterInfo, as_real
from compressa.strategies.apart import Apart
from compressa.strategies.base import Strategy, Training
from compressa.strategies.cadence import Cadence, Facts
from compressa.strategies.fragments import begins_after, cut
from compressa.strategies.local import open_local, statistics_of
from compressa.strategies.refusals import check_memory

TOLD = "compressa: told at meetings"
_PROGRESS = ParameterInfo(0, "compressa: progress", (4,))
_DIGITS = 1 << 20  # a float32 holds a number below it exactly


@dataclass(frozen=True)
class Replica:
    """One parameter: what the rank trains, and what all ranks agreed on last.

    Attributes:
        own: As real values; the parameter's memory.
        anchor: float32, of the same shape.
        difference: As `own`; holds the mean over all ranks when a meeting is over.
    """

    own: torch.Tensor
    anchor: torch.Tensor
    difference: torch.Tensor

    def differ(self) -> None:
        """Write how far the rank has come from the anchor, as that is in the parameter's dtype.

        So what 16 bits have rounded away of an anchor is no step back.
        """
        torch.sub(self.own, self.anchor.to(self.own.dtype), out=self.difference)


class Rule(ABC):
    """What becomes of anchors and parameters when a mean is here.

    Attributes:
        unites: Whether a rank's parameters are the anchor's then.
    """

    unites: bool = True

    def prepare(self, replicas: Mapping[str, Replica], handle: Handle) -> None:
        """Make what is kept from meeting to meeting.

        Args:
            replicas: All, by parameter name; the rule sees the same ones again.
            handle: Its engine's state is saved and compared with the anchors.
        """
        del replicas, handle

    @abstractmethod
    def meet(self, replicas: Sequence[Replica], ranks: int) -> None:
        """Make the next anchors, and the parameters to go on with.

        Args:
            replicas: Of a fragment; their differences are means over all ranks.
            ranks: How many these are.
        """


class Flight(NamedTuple):
    """A fragment that is on its way."""

    fragment: int
    ticket: Ticket
    lands_at: int
    left_s: float


class Periodic(Apart):
    """See the module.

    Args:
        training: What is trained.
        handle: Open for the model's parameters, and for `TOLD`.
        rule: For each fragment.
        cadence: Chooses H.
        overlap_steps: Steps that are taken while a fragment is on its way.
    """

    def __init__(
        self,
        training: Training,
        handle: Handle,
        *,
        rule: Rule,
        cadence: Cadence,
        overlap_steps: int = 0,
    ) -> None:
        model = training.model
        super().__init__(training, handle)
        self._rule, self._cadence, self._overlap_steps = rule, cadence, overlap_steps
        self._anchors = _Anchors(handle.group)
        handle.attach(self._anchors)
        replicas = _replicas(model, handle)
        rule.prepare(replicas, handle)
        self._fragments = _by_fragment(replicas, handle)
        device = handle.engine.device_stream.device
        self._told = self._sent = torch.zeros(_told_elems(model, cadence), device=device)
        assert handle.config.strategy is not None, "the configuration names one"
        self._progress = kept(f"strategy_{handle.config.strategy.name}", _PROGRESS, handle)
        self._taken = self._next = 0
        self._flight: Flight | None = None
        self._meeting_s, self._begun_s = 0.0, time.monotonic()
        self.every = cadence.choose(0, ())
        self._note_progress()

    def _go_on(self) -> None:
        self._taken += 1
        if self._flight is not None and self._steps >= self._flight.lands_at:
            self._land()
        count = len(self._fragments)
        if self._next < count and self._taken >= begins_after(self._next, count, self.every):
            self._depart(self._overlap_steps)

    def _unite(self) -> None:
        """Meet now, all fragments, and go on from the anchor on all ranks."""
        if self._flight is not None:
            self._land()
        if self._taken or self._next:
            self._meet()
        if len(self._fragments) > 1 and not self._united:
            self._meet()  # those that met first have gone on since
        self._take_anchors()

    def _reunite(self) -> None:
        """Have a round begin anew; what it had brought to anchors is taken back."""
        self._flight, self._next = None, 0
        self._cadence.memory = float(self._progress[-1])
        self._meet()
        self._take_anchors()

    def load(self, path: str | Path) -> None:
        """Take back what `save` has written, and begin with its anchor; see `Strategy.load`."""
        if self._flight is not None or self._next:
            raise StateError(
                f"strategy.load after step {self._steps}: some fragments have met in this round, "
                "and others not; call strategy.sync() first, on all ranks"
            )
        super().load(path)
        every, high, low, self._cadence.memory = self._progress.tolist()
        self._steps, self._taken = int(high) * _DIGITS + int(low), 0
        # What is told at meetings has been; all else is as the configuration says now.
        self.every = int(every) if self._cadence.told else self._cadence.choose(self._steps, ())
        self._take_anchors()

    def _meet(self) -> None:
        """Have the fragments that have not met in this round do so, one after the other."""
        self._depart(0)
        while self._next:
            self._depart(0)

    def _take_anchors(self) -> None:
        with torch.no_grad():
            for replica in itertools.chain(*(part.values() for part in self._fragments)):
                replica.own.copy_(replica.anchor)
        self._united = True

    def _depart(self, overlap_steps: int) -> None:
        """Have the next fragment leave, and wait for it unless steps go on meanwhile."""
        integrity, step = self.handle.integrity, self.handle.next_step
        replicas = self._fragments[self._next]
        last = self._next == len(self._fragments) - 1
        check_memory(self.model, self._own)
        if self._cadence.timed and self._told.is_cuda:
            torch.cuda.synchronize(self._told.device)  # else the meeting would be put down to it
        left_s = time.monotonic()
        with torch.no_grad():
            for replica in replicas.values():
                replica.differ()
        submitted = {name: replica.difference for name, replica in replicas.items()}
        if last and self._told.numel():
            self._tell((left_s - self._begun_s) / max(self._taken, 1))
            submitted[TOLD] = self._told
        if self._next == 0:
            integrity.settle(step)
            integrity.begin(step)
        ticket = self.handle.submit(submitted)
        if last:
            integrity.tell()
        self._flight = Flight(self._next, ticket, self._steps + overlap_steps, left_s)
        self._next += 1
        if last:
            self._next = self._taken = 0
        if overlap_steps == 0:
            self._land()

    def _land(self) -> None:
        """Wait for the fragment that is on its way, and go on from its mean."""
        assert self._flight is not None, "one is on its way"
        (fragment, ticket, _, left_s), self._flight = self._flight, None
        self.handle.wait([ticket], "a meeting")
        with torch.no_grad():
            replicas = list(self._fragments[fragment].values())
            self._rule.meet(replicas, self.handle.group.size())
            if fragment == len(self._fragments) - 1:
                self._end_round(left_s)

    def _end_round(self, left_s: float) -> None:
        means = self._hear()
        self._united = self._rule.unites and len(self._fragments) == 1 and not self._taken
        self._begun_s = time.monotonic()
        self._meeting_s = self._begun_s - left_s
        self.every = self._cadence.choose(self._steps, means)
        self._note_progress()

    def _note_progress(self) -> None:
        progress = (self.every, *divmod(self._steps, _DIGITS), self._cadence.memory)
        self._progress.copy_(torch.tensor(progress, dtype=torch.float32))

    def _tell(self, step_s: float) -> None:
        """Write what the next choice of H rests on, and buffers."""
        told = self._cadence.tell(Facts(self._rate, step_s, self._meeting_s))
        self._told[: len(told)] = torch.tensor(told)
        begin = len(told)
        for buffer in statistics_of(self.model).values():
            self._told[begin : begin + buffer.numel()] = buffer.flatten()
            begin += buffer.numel()
        self._sent = self._told.clone() if self._overlap_steps else self._told

    def _hear(self) -> list[float]:
        """Take over the means of buffers, with what they learnt since; return those of the rest."""
        if not self._told.numel():
            return []
        buffers = statistics_of(self.model).values()
        sizes = [self._cadence.told, *(buffer.numel() for buffer in buffers)]
        means, *came = self._told.split(sizes)
        _, *sent = self._sent.split(sizes)
        for buffer, mean, own in zip(buffers, came, sent, strict=True):
            if self._taken:
                sent_and_mean = (part.view_as(buffer).to(buffer.dtype) for part in (own, mean))
                buffer.copy_(carried_over(buffer, *sent_and_mean))
            else:
                buffer.copy_(mean.view_as(buffer))
        return list(map(float, means))

    @property
    def _rate(self) -> float:
        return max(float(group["lr"]) for group in self.optimizer.param_groups)


class _Anchors:
    """What a handle compares between ranks: no parameters, but all that its engine's state has."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.module = nn.Module()
        self.process_group = group

    def _update_process_group(self, group: dist.ProcessGroup) -> None:
        self.process_group = group


def kept(kind: str, parameter: ParameterInfo, handle: Handle) -> torch.Tensor:
    """Return a vector of zeros, float32, that is saved with the engine's state.

    Args:
        kind: What it is.
        parameter: Whose it is; it has as many elements.
        handle: Its engine's state; all ranks hold the same in it.
    """
    state = handle.engine.state
    vector = state.vector(kind, parameter, parameter.elems, Merge.FIRST)
    state.kept.add(f"{kind}/{parameter.name}")
    return vector


def _replicas(model: nn.Module, handle: Handle) -> dict[str, Replica]:
    known = {parameter.name: parameter for parameter in handle.engine.parameters}
    replicas = {}
    for name, parameter in trained(model).items():
        own = as_real(parameter.detach())
        anchor = kept("anchor", known[name], handle).view(own.shape)
        anchor.copy_(own)
        replicas[name] = Replica(own, anchor, torch.empty_like(own))
    return replicas


def _by_fragment(replicas: Mapping[str, Replica], handle: Handle) -> list[dict[str, Replica]]:
    number = {parameter.name: parameter.fragment for parameter in handle.engine.parameters}
    found: list[dict[str, Replica]] = [{} for _ in range(max(number.values()) + 1)]
    for name, replica in replicas.items():
        found[number[name]][name] = replica
    return found


def _told_elems(model: nn.Module, cadence: Cadence) -> int:
    return cadence.told + sum(buffer.numel() for buffer in statistics_of(model).values())


def open_periodic(
    training: Training,
    rule: Rule,
    cadence: Cadence,
    fragments: int = 1,
    overlap_steps: int = 0,
) -> Strategy:
    """Open an engine for a model's parameters, and let ranks meet by it. Collective.

    Args:
        training: What is trained.
        rule: As `Periodic` takes it.
        cadence: As `Periodic` takes it.
        fragments: Into how many the parameters are cut.
        overlap_steps: As `Periodic` takes it.

    Raises:
        CompressaError: As `compressa.attach`.
    """
    told = _told_elems(training.model, cadence)
    sizes = {name: parameter.numel() for name, parameter in trained(training.model).items()}
    exact = {TOLD: told} if told else {}
    handle = open_local(training, fragments=cut(sizes, fragments), exact=exact)
    with handle.closed_on_error():
        return Periodic(training, handle, rule=rule, cadence=cadence, overlap_steps=overlap_steps)
