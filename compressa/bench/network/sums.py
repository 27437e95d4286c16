"""Sums of plain values: our algorithms, what the engine chooses, and others' all-reduces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
import torch.distributed as dist

from compressa.aggregators.base import AllReduce, Request, Round
from compressa.aggregators.base import Verb as RoundVerb
from compressa.bench.network.method import Method, Operation, Verb, repeated
from compressa.collectives.accumulator import Span
from compressa.collectives.algorithms import ALGORITHMS, segmented, segments_of
from compressa.collectives.choice import ROUND_ROBIN, Costs
from compressa.collectives.cost import Stage
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.collectives.team import Team
from compressa.engine.session import Session
from compressa.engine.sums import Sums

Stages = Callable[[int, int], list[Stage]]
AUTO = "auto"


@final
@dataclass(frozen=True)
class Sum(Method):
    """Sum a vector of float32 over the ranks; the size is that of the vector.

    Attributes:
        costs: Its stages for a size and a number of ranks, where they are known.
    """

    verb: Verb = field(default="all_reduce", kw_only=True)
    costs: Stages | None = None

    def stages(self, size_bytes: int, ranks: int) -> list[Stage] | None:
        """As the algorithm says."""
        return None if self.costs is None else self.costs(size_bytes, ranks)

    def segments(self, size_bytes: int, ranks: int) -> int:
        """As the engine cuts sums."""
        return segments_of(size_bytes, ranks) if self.name in ALGORITHMS else 1

    def floor_bytes(self, size_bytes: int, ranks: int) -> float:
        """Each rank's values leave it but for a part, and the sum comes back likewise."""
        return 2 * (ranks - 1) / ranks * size_bytes

    def sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """As the algorithm does; or the fewest."""
        if self.name == "all_to_all":
            return ranks * (ranks - 1) * size_bytes
        if self.name == "recursive_doubling":
            doublings = ranks.bit_length() - 1
            core = 1 << doublings
            return (core * doublings + 2 * (ranks - core)) * size_bytes
        return 2 * (ranks - 1) * size_bytes

    def memory_bytes(self, size_bytes: int, ranks: int) -> int:
        """The values, what comes in, and what a library makes of them."""
        return ranks * size_bytes * (ranks + 1 if self.name == "all_to_all" else 3)

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Sum rank + 1 in every element."""
        if self.by != "gloo":
            return summed(self.name, size_bytes, session)
        values = _values(size_bytes, session)
        call = partial(dist.all_reduce, values)
        return Operation(call, lambda: _verify(self.name, values, session.size))


def summed(what: str, size_bytes: int, session: Session, costs: Costs | None = None) -> Operation:
    """Sum as the engine does it.

    Args:
        what: One of our algorithms, "scatter_reduce", "backend", or "auto".
        size_bytes: Of the vector.
        session: Where.
        costs: What "auto" chooses by.
    """
    values = _values(size_bytes, session)
    call = _sum(what, values, session, costs)
    return Operation(call, lambda: _verify(what, values, session.size))


def _values(size_bytes: int, session: Session) -> torch.Tensor:
    return torch.full((max(size_bytes // 4, 1),), float(session.rank + 1))


def _sum(
    what: str, values: torch.Tensor, session: Session, costs: Costs | None
) -> Callable[[], object]:
    scratch, rank, size = Scratch(values.device), session.rank, session.size
    round_ = Round(RoundVerb.ALL_REDUCE, values.dtype, values.nbytes, dense=True)
    if what == ROUND_ROBIN:
        # The engine takes `scatter_reduce` under that name: cut it as it cuts the others.
        all_reduce = segmented(ALGORITHMS[what], segments_of(values.nbytes, size))
        parts = DenseValues(values), Span(0, values.numel()), Team.everyone(rank, size), scratch
        return repeated(session, partial(all_reduce, *parts))
    algorithm = ROUND_ROBIN if what == "scatter_reduce" else what
    sums = Sums(session.transport, algorithm, costs=costs)
    request = AllReduce(DenseValues(values), scratch)
    return carried(sums, request, round_, session)


def carried(sums: Sums, request: Request, round_: Round, session: Session) -> Callable[[], object]:
    """Do what an aggregator asks for, again and again."""
    session.follow(sums.transfers(0, [round_]), sums.ordered([round_]))
    return lambda: session.run(sums.run(request, round_))


def _verify(what: str, values: torch.Tensor, size: int) -> None:
    """Look at all elements; and make them zero, so that many sums in a row do not overflow."""
    wrong = int((values != size * (size + 1) / 2).sum())
    if wrong:
        raise ArithmeticError(f"{what} has summed {wrong} of {values.numel()} elements wrongly")
    values.zero_()
