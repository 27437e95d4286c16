"""The contract of an aggregator, the only thing that the engine drives.

An aggregator is bound to one unit. `rounds` says beforehand which communication it will ask for;
`run` is a generator that asks for exactly those rounds, in order, with device work between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import torch

from compressa.aggregators import narrow
from compressa.codecs.payload import check_countable
from compressa.collectives.accumulator import Accumulator
from compressa.collectives.dense import divide
from compressa.collectives.digraphs import Digraph
from compressa.collectives.graphs import Graph
from compressa.collectives.scratch import Scratch
from compressa.compressor import Compressor
from compressa.parameters import Layout, ParameterInfo, Segment

CPU = torch.device("cpu")


class Verb(Enum):
    """What a round asks of the network."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    NEIGHBOURS = "neighbours"


@dataclass(frozen=True)
class Round:
    """One communication round, known before the first step.

    Attributes:
        verb: What is asked.
        dtype: Dtype of the values on the wire; uint8 for payloads.
        capacity_bytes: Most bytes of this rank's whole contribution.
        dense: Of an all-reduce, whether a backend can carry it: plain values, to be added.
        algorithm: Of an all-reduce, the name of the one that must carry it, whole; else it is the
            configured one, in segments that follow each other.
        inside_bytes: Of an all-reduce, most bytes of a message that stays within a host, if it
            differs.
        shard_bytes: Of an all-reduce, most bytes of each rank's shard; nearly equal if empty.
        exact: Of payloads, whether every one has `capacity_bytes`; else it may be shorter.
        peers: To how many ranks neighbours send theirs, at most.
    """

    verb: Verb
    dtype: torch.dtype
    capacity_bytes: int
    dense: bool = False
    algorithm: str | None = None
    inside_bytes: int | None = None
    shard_bytes: tuple[int, ...] = ()
    exact: bool = True
    peers: int = 0

    def check(self) -> None:
        """Raise ConfigError if no message can be as long."""
        check_countable("a message", 0, self.capacity_bytes)


@dataclass(frozen=True)
class AllGather:
    """Request: bring every rank's payload to every rank; answered with `{rank: payload}`.

    Attributes:
        payload: uint8; this rank's.
        incoming: A buffer of the round's capacity for each other rank's.
        scratch: Memory for payloads that travel together.
        gathered: Memory of all payloads by rank, if they lie side by side on every rank.
    """

    payload: torch.Tensor
    incoming: Mapping[int, torch.Tensor]
    scratch: Scratch
    gathered: torch.Tensor | None = None


@dataclass(frozen=True)
class Broadcast:
    """Request: bring one rank's payload to every rank, in place.

    Attributes:
        payload: uint8, as long as the round's capacity: the root's is sent, the others' written.
        root: Whose it is.
    """

    payload: torch.Tensor
    root: int


@dataclass(frozen=True)
class Neighbours:
    """Request: bring the payload to some ranks, and some ranks' here.

    Answered with `{rank: payload}`.

    Attributes:
        payload: uint8; this rank's.
        incoming: A buffer of the round's capacity for each rank that is heard from.
        receivers: To whom the payload goes.
    """

    payload: torch.Tensor
    incoming: Mapping[int, torch.Tensor]
    receivers: Collection[int]


@dataclass(frozen=True)
class AllReduce:
    """Request: sum over all ranks; `values` hold the result afterwards.

    Attributes:
        values: What is summed, and the messages it travels as.
        scratch: Memory for what comes in.
        inside: Makes the messages that stay within a host, of the same values, if they differ; its
            spans may begin where those of `values` may.
    """

    values: Accumulator
    scratch: Scratch
    inside: Accumulator | None = None


Request = AllReduce | AllGather | Broadcast | Neighbours
Rounds = Generator[Request, Any, None]


@dataclass(frozen=True)
class StepContext:
    """One step of one unit.

    Attributes:
        step: Optimizer step.
        epoch: Epoch of the transport.
        loss_scale: What the gradients were multiplied by; residuals are kept unscaled.
        hold_zeros: A segment whose gradient is all zero keeps its residual back (its
            parameter may be unused on every rank, and the result thrown away).
    """

    step: int
    epoch: int = 0
    loss_scale: float = 1.0
    hold_zeros: bool = False


def held_back(x: torch.Tensor, context: StepContext) -> bool:
    """Whether the residual of a gradient, x, must wait: its parameter may be unused on every rank.

    Where zeros are to be held (`context.hold_zeros`), a GPU is waited for.
    """
    return context.hold_zeros and not bool(x.any())


class Merge(Enum):
    """How one rank's state becomes another world's, when the number of ranks changes."""

    SUM = "sum"  # residuals: e'_j = (P'/P) times the sum of the e_i mapped to j
    FIRST = "first"  # the same on every rank: any copy serves


class State:
    """Named vectors that survive steps, keyed by parameter name; one store per rank.

    `vector` gives the same memory to whoever asks for the same name, so that units, cuts and
    compressors can change while the state stays.

    Args:
        device: Where the vectors are: with the gradients.

    Attributes:
        device: As given.
        vectors: By kind and parameter name.
        merges: How each is redistributed.
        claimed: Names that somebody has asked for since they were taken out of this set.
        kept: Names of what is never forgotten.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.vectors: dict[str, torch.Tensor] = {}
        self.merges: dict[str, Merge] = {}
        self.claimed: set[str] = set()
        self.kept: set[str] = set()

    def vector(
        self,
        kind: str,
        parameter: ParameterInfo,
        elems: int,
        merge: Merge,
        initial: Callable[[torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """Return the vector of this kind for a parameter, made of zeros at first.

        Args:
            kind: What it is, such as "residual".
            parameter: Whose it is.
            elems: Its length, float32.
            merge: What becomes of it when the number of ranks changes.
            initial: Fills it when it is new.
        """
        key = f"{kind}/{parameter.name}"
        self.claimed.add(key)
        if key not in self.vectors:
            self.vectors[key] = torch.zeros(elems, dtype=torch.float32, device=self.device)
            self.merges[key] = merge
            if initial is not None:
                initial(self.vectors[key])
        return self.vectors[key]

    def residual(self, parameter: ParameterInfo, width: narrow.Width = "float32") -> torch.Tensor:
        """Return a parameter's residual: what was not sent so far, unscaled.

        If it is kept in another form, it changes into this one: a compressor that comes into
        force later goes on with what the one before it left.

        Args:
            parameter: Whose it is.
            width: What it is kept as; see `compressa.aggregators.narrow`.
        """
        key = residual_key(parameter)
        self.claimed.add(key)
        vector = self.vectors.get(key)
        if vector is None:
            vector = narrow.zeros(parameter.elems, width, self.device)
            self.merges[key] = Merge.SUM
        self.vectors[key] = narrow.converted(vector, width)
        return self.vectors[key]

    def shared(self) -> dict[str, torch.Tensor]:
        """Return the vectors that are the same on every rank."""
        return {k: v for k, v in self.vectors.items() if self.merges[k] is Merge.FIRST}

    def forget(self) -> None:
        """Drop what nobody has claimed; residuals stay, since they are owed to the optimizer."""
        for key in self.vectors.keys() - self.claimed - self.kept:
            if not key.startswith("residual/"):
                del self.vectors[key], self.merges[key]


def residual_key(parameter: ParameterInfo) -> str:
    """Return what a parameter's residual is called among the vectors of a `State`."""
    return f"residual/{parameter.name}"


@dataclass(frozen=True)
class Scope:
    """Part of one of the unit's gradients, compressed alone.

    Attributes:
        gradient: Index of the gradient in the unit.
        start: First element in that gradient.
        segment: The same part as a segment of its parameter.
    """

    gradient: int
    start: int
    segment: Segment

    def of(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return this scope's values: 1-D, a view of its gradient, and of the same dtype."""
        whole = gradients[self.gradient]
        if whole.numel() == self.segment.elems:
            return whole
        return whole[self.start : self.start + self.segment.elems]

    def residual(self, state: State) -> torch.Tensor:
        """Return this scope's part of its parameter's residual: float32, 1-D, a view of it."""
        whole = state.residual(self.segment.parameter)
        return whole[self.segment.start : self.segment.stop]


def whole_scopes(layout: Layout) -> tuple[Scope, ...]:
    """One scope for each segment."""
    return tuple(Scope(i, 0, segment) for i, segment in enumerate(layout.segments))


@dataclass(frozen=True)
class World:
    """What an aggregator needs to know of the run.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        seed: Seed of the counter-based random bits.
        exchange: How codecs are exchanged, as `exchange.kind` in a configuration.
        state: This rank's state.
        inside: What makes the messages of a sum that stay within a host, where its algorithm knows
            hosts: "none", "bf16" or "fp16".
        graph: Who averages with whom, or sends to whom, where not all do with all.
    """

    rank: int
    size: int
    seed: int
    exchange: str
    state: State
    inside: str = "none"
    graph: Graph | Digraph | None = None

    @property
    def device(self) -> torch.device:
        """Where gradients, state and payloads are."""
        return self.state.device

    @cached_property
    def peers(self) -> tuple[int, ...]:
        """The other ranks, the next one first."""
        return tuple((self.rank + shift) % self.size for shift in range(1, self.size))

    def divide(self, values: torch.Tensor, out: torch.Tensor | None = None) -> None:
        """Divide values by the number of ranks, each quotient rounded once on every device.

        Args:
            values: Floating-point.
            out: Receives the quotients; the values themselves if not given.
        """
        divide(values, self.size, out)


class Aggregator(ABC):
    """Turns the ranks' gradients of one unit into their mean.

    Attributes:
        begins_quick: Whether what `run` computes before its first round is `quick`, if not all is;
        ends_quick: and what comes after its last round, which is asked when that is over.
        joinable: Whether units may be joined (`Layout.join`): no value changes if sums go by rank.
        waits: Whether what is computed on a GPU may wait for it; else it only gives it work.
    """

    begins_quick: bool = False
    ends_quick: bool = False
    joinable: bool = False
    waits: bool = True

    @property
    def values_dtype(self) -> torch.dtype:
        """Dtype in which `run` wants the gradients."""
        return torch.float32

    @property
    def takes_half(self) -> bool:
        """Whether `run` also takes float16 and bfloat16, and rounds the mean to it once."""
        return False

    @property
    def quick(self) -> bool:
        """Whether all that is computed takes less time than handing it to another thread.

        For kernels on a few values: what may take long keeps the network from being served.
        """
        return False

    @property
    @abstractmethod
    def rounds(self) -> tuple[Round, ...]:
        """The communication rounds of every step, in order."""

    @abstractmethod
    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Yield the rounds' requests; afterwards `gradients` hold the mean over ranks.

        Args:
            gradients: One 1-D contiguous tensor per segment, overwritten; of `values_dtype`, or of
                16 bits if it `takes_half`.
            context: The step.
        """

    @abstractmethod
    def rollback(self, context: StepContext) -> None:
        """Give back to the residual what `context` sent, since its step was skipped."""


@dataclass(frozen=True, kw_only=True)
class AggregatingCompressor(Compressor):
    """A compressor that is no codec: it exchanges in rounds of its own, or wraps what exchanges."""

    @abstractmethod
    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Build what the engine drives for one unit.

        Args:
            layout: The unit's segments.
            world: Ranks, exchange settings and state.

        Raises:
            ConfigError: The wanted exchange does not fit.
        """
