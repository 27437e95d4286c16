"""Bytes from ranks that have them to those that do not: one message, or a broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
import torch.distributed as dist

from benchmarks.exchange.method import Method, Needs, Verb
from compressa.collectives.base import Program
from compressa.collectives.broadcast import BroadcastAlgorithm, chosen
from compressa.collectives.cost import Stage
from compressa.collectives.passing import pass_hop
from compressa.collectives.rank_group import RankGroup
from compressa.engine.session import Session
from compressa.link.operations import Operation, nothing, repeated

SENDER, RECEIVER = 0, 1
_PERIOD = 251  # a prime: no chunk looks like the one before it

# Few frames have few headers; and what the kernel holds has to stay in the processor's cache.
_FRAME_BYTES, _UNSENT_BYTES = 4 << 20, 1 << 17


@final
@dataclass(frozen=True)
class Transfer(Method):
    """Bring bytes from the first host to the second; the others look on."""

    verb: Verb = field(default="transfer", kw_only=True)

    @classmethod
    def striped(cls, connections: int) -> Transfer:
        """Ours over several connections."""
        exchange = (("connections", connections),)
        return cls(f"send over {connections}", "compressa", exchange=exchange)

    @classmethod
    def in_large_frames(cls) -> Transfer:
        """Ours where nothing more urgent comes, which could not overtake a frame."""
        exchange = (("chunk_bytes", _FRAME_BYTES), ("credit_bytes", _FRAME_BYTES + _UNSENT_BYTES))
        return cls("send in large frames", "compressa", exchange=exchange)

    def stages(self, size_bytes: int, ranks: int) -> list[Stage] | None:
        """One message; how several connections share it is not for a formula of one port."""
        known = self.by == "compressa" and "connections" not in dict(self.exchange)
        return [Stage(1, size_bytes)] if known else None

    def needs(self, size_bytes: int, ranks: int) -> Needs:
        """The message; memory holds it at both ends, and what a library keeps of it."""
        return Needs(size_bytes, size_bytes, 5 * size_bytes)

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Send a pattern."""
        rank = session.rank
        data = pattern(size_bytes, known=rank != RECEIVER)
        call: Callable[[], object]
        if self.by == "compressa":
            call = repeated(session, partial(_program, data, rank))
        elif rank == SENDER:
            call = partial(dist.send, data, RECEIVER)
        elif rank == RECEIVER:
            call = partial(dist.recv, data, SENDER)
        else:
            call = nothing
        return Operation(call, lambda: check_pattern(self.name, data))


def _program(data: torch.Tensor, rank: int) -> Program[None]:
    if rank == SENDER:
        yield from pass_hop({RECEIVER: data}, {})
    elif rank == RECEIVER:
        yield from pass_hop({}, {SENDER: data})


@final
@dataclass(frozen=True)
class Broadcast(Method):
    """Bring bytes from some ranks to all others.

    Attributes:
        choice: The algorithm; None where it is another's.
        sources: How many ranks hold the bytes beforehand.
    """

    choice: str | None = None
    sources: int = 1
    verb: Verb = field(default="broadcast", kw_only=True)

    @classmethod
    def ours(cls, choice: str, sources: int) -> Broadcast:
        """Name it after its algorithm."""
        name = f"{choice} from {sources}"
        return cls(name, "compressa", choice, sources, least_ranks=sources + 1)

    def stages(self, size_bytes: int, ranks: int) -> list[Stage] | None:
        """As the algorithm says."""
        algorithm = self._algorithm(size_bytes, ranks)
        return None if algorithm is None else algorithm.stages(size_bytes, ranks, self.sources)

    def needs(self, size_bytes: int, ranks: int) -> Needs:
        """Each receiver hears all of it; memory holds it on every rank, and to compare it with."""
        receivers = ranks - self.sources
        return Needs(size_bytes, receivers * size_bytes, (ranks + 2) * size_bytes)

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Broadcast a pattern."""
        rank, size = session.rank, session.size
        sources = indices(self.sources, size)
        data = pattern(size_bytes, known=rank in sources)
        algorithm = self._algorithm(size_bytes, size)
        call: Callable[[], object]
        if algorithm is None:
            call = partial(dist.broadcast, data, sources[0])
        else:
            program = partial(algorithm.broadcast, data, RankGroup.everyone(rank, size), sources)
            call = repeated(session, program)
        return Operation(call, lambda: check_pattern(self.name, data))

    def _algorithm(self, size_bytes: int, ranks: int) -> BroadcastAlgorithm | None:
        """Cut as its own choice says; None where it is another's."""
        if self.choice is None:
            return None
        return chosen(self.choice, size_bytes, ranks, self.sources)


def indices(sources: int, ranks: int) -> Sequence[int]:
    """Spread the sources evenly over the ranks.

    Example:
        >>> indices(4, 8), indices(1, 4)
        ([0, 2, 4, 6], [0])
    """
    return [ranks * i // sources for i in range(sources)]


def pattern(size_bytes: int, *, known: bool = True) -> torch.Tensor:
    """Return so many bytes, uint8: the pattern, or zeros where it is not known yet."""
    if not known:
        return torch.zeros(size_bytes, dtype=torch.uint8)
    period = torch.arange(_PERIOD, dtype=torch.uint8)
    return period.repeat(-(-size_bytes // _PERIOD))[:size_bytes].clone()


def check_pattern(what: str, data: torch.Tensor) -> None:
    """Look whether bytes are the pattern.

    Raises:
        ArithmeticError: They are not.
    """
    if not torch.equal(data, pattern(data.numel())):
        raise ArithmeticError(f"{what} has brought wrong bytes")
