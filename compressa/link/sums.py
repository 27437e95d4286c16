"""Sums as the engine does them, again and again; every rank gives rank + 1 in every element."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from compressa.aggregators.base import AllReduce, Request, Round, Verb
from compressa.collectives.accumulator import Span
from compressa.collectives.algorithms import ALGORITHMS, segmented, segments_of
from compressa.collectives.choice import ROUND_ROBIN, Costs
from compressa.collectives.dense import DenseValues
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.engine.session import Session
from compressa.engine.units.sums import Sums
from compressa.link.operation import Operation, repeated


def summed(what: str, size_bytes: int, session: Session, costs: Costs | None = None) -> Operation:
    """Sum as the engine does it.

    Args:
        what: One of our algorithms, "scatter_reduce", "backend", or "auto".
        size_bytes: Of the vector.
        session: Where.
        costs: What "auto" chooses by.
    """
    values = values_of(size_bytes, session)
    call = _sum(what, values, session, costs)
    return Operation(call, lambda: verify(what, values, session.size))


def values_of(size_bytes: int, session: Session) -> torch.Tensor:
    """Return what this rank gives, float32."""
    return torch.full((max(size_bytes // 4, 1),), float(session.rank + 1))


def _sum(
    what: str, values: torch.Tensor, session: Session, costs: Costs | None
) -> Callable[[], object]:
    scratch, rank, size = Scratch(values.device), session.rank, session.size
    round_ = Round(Verb.ALL_REDUCE, values.dtype, values.nbytes, dense=True)
    if what == ROUND_ROBIN:
        # The engine takes `scatter_reduce` under that name: cut it as it cuts the others.
        all_reduce = segmented(ALGORITHMS[what], segments_of(values.nbytes, size))
        parts = (
            DenseValues(values),
            Span(0, values.numel()),
            RankGroup.everyone(rank, size),
            scratch,
        )
        return repeated(session, partial(all_reduce, *parts))
    algorithm = ROUND_ROBIN if what == "scatter_reduce" else what
    sums = Sums(session.transport, algorithm, costs=costs)
    request = AllReduce(DenseValues(values), scratch)
    return carried(sums, request, round_, session)


def carried(sums: Sums, request: Request, round_: Round, session: Session) -> Callable[[], object]:
    """Do what an aggregator asks for, again and again."""
    session.follow(sums.transfers(0, [round_]), sums.ordered([round_]))
    return lambda: session.run(sums.run(request, round_))


def verify(what: str, values: torch.Tensor, size: int) -> None:
    """Look at all elements; and make them zero, so that many sums in a row do not overflow.

    Raises:
        ArithmeticError: An element is wrong.
    """
    wrong = int((values != size * (size + 1) / 2).sum())
    if wrong:
        raise ArithmeticError(f"{what} has summed {wrong} of {values.numel()} elements wrongly")
    values.zero_()
