"""Broadcasts: from one rank or several, which all hold the same bytes, to those that do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch.distributed as dist

from benchmarks.exchange.method import Method, Verb
from benchmarks.exchange.transfers import check_pattern, pattern
from compressa.collectives.broadcast import BroadcastAlgorithm, Choice, chosen
from compressa.collectives.cost import Stage
from compressa.collectives.rank_group import RankGroup
from compressa.engine.session import Session
from compressa.link.operations import Operation, repeated


@final
@dataclass(frozen=True)
class Broadcast(Method):
    """Bring bytes from some ranks to all others.

    Attributes:
        choice: The algorithm; None where it is another's.
        sources: How many ranks hold the bytes beforehand.
    """

    choice: Choice | None = None
    sources: int = 1
    verb: Verb = field(default="broadcast", kw_only=True)

    @classmethod
    def ours(cls, choice: Choice, sources: int) -> Broadcast:
        """Name it after its algorithm."""
        name = f"{choice} from {sources}"
        return cls(name, "compressa", choice, sources, least_ranks=sources + 1)

    def stages(self, size_bytes: int, ranks: int) -> list[Stage] | None:
        """As the algorithm says."""
        algorithm = self._algorithm(size_bytes, ranks)
        return None if algorithm is None else algorithm.stages(size_bytes, ranks, self.sources)

    def floor_bytes(self, size_bytes: int, ranks: int) -> float:
        """Each receiver has to hear all of them."""
        return size_bytes

    def sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """Once to each receiver."""
        return (ranks - self.sources) * size_bytes

    def memory_bytes(self, size_bytes: int, ranks: int) -> int:
        """The bytes, on every rank, and once more to compare them with."""
        return (ranks + 2) * size_bytes

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Broadcast a pattern."""
        rank, size = session.rank, session.size
        sources = indices(self.sources, size)
        data = pattern(size_bytes)
        if rank not in sources:
            data.zero_()
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
