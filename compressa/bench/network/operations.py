"""Operations: what a rank does for each method, and how it sees that the result is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from compressa.aggregators.base import AllGather, AllReduce, Request, Round, Verb
from compressa.bench.network.methods import ADD, HOP, HOPS
from compressa.collectives.accumulator import Span
from compressa.collectives.algorithms import ALGORITHMS, segmented
from compressa.collectives.base import Exchange, Program
from compressa.collectives.combine import DenseSum
from compressa.collectives.dense import DenseValues
from compressa.collectives.direct import peers
from compressa.collectives.scratch import Scratch
from compressa.collectives.team import Team
from compressa.engine.session import Session
from compressa.engine.sums import Sums


@dataclass(frozen=True)
class Operation:
    """One method on one size.

    Attributes:
        call: Does it once.
        verify: To be called after the first time; raises if the result is wrong.
    """

    call: Callable[[], object]
    verify: Callable[[], object]


def prepare(what: str, size_bytes: int, session: Session) -> Operation:
    """Return an operation; all ranks must ask for the same."""
    if what == HOP:
        return _hops(size_bytes, session)
    if what == ADD:
        return _adds(size_bytes)
    values = torch.full((max(size_bytes // 4, 1),), float(session.rank + 1))
    if what in ("all_gather", "gloo all_gather"):
        return _gather(what, values, session)
    backend = what == "gloo all_reduce"
    call = partial(dist.all_reduce, values) if backend else _sum(what, values, session)
    return Operation(call, lambda: _verify_sum(what, values, session.size))


def _sum(what: str, values: torch.Tensor, session: Session) -> Callable[[], object]:
    """Sum as the engine does it, with what it is told to use."""
    scratch, rank, size = Scratch(values.device), session.rank, session.size
    round_ = Round(Verb.ALL_REDUCE, values.dtype, values.nbytes, dense=True)
    if what == "round_robin":
        # The engine takes `scatter_reduce` under that name: cut it as it cuts the ring.
        hops = len(ALGORITHMS["ring"].stages(0, size))
        segments = len(Sums(session.transport, "ring").transfers(0, [round_])) // hops
        all_reduce = segmented(ALGORITHMS[what], segments)
        parts = DenseValues(values), Span(0, values.numel()), Team.everyone(rank, size), scratch
        session.follow([], [])
        return lambda: session.run(all_reduce(*parts))
    sums = Sums(session.transport, "round_robin" if what == "scatter_reduce" else what)
    request = AllReduce(DenseSum(values, rank, size), scratch)
    return _carried(sums, request, round_, session)


def _carried(sums: Sums, request: Request, round_: Round, session: Session) -> Callable[[], object]:
    session.follow(sums.transfers(0, [round_]), sums.ordered([round_]))
    return lambda: session.run(sums.carry(request, round_))


def _verify_sum(what: str, values: torch.Tensor, size: int) -> None:
    """Look at all elements; and make them zero, so that many sums in a row do not overflow."""
    wrong = int((values != size * (size + 1) / 2).sum())
    if wrong:
        raise ArithmeticError(f"{what} has summed {wrong} of {values.numel()} elements wrongly")
    values.zero_()


def _gather(what: str, values: torch.Tensor, session: Session) -> Operation:
    rank, size = session.rank, session.size
    whole = torch.empty(size * values.numel())
    parts = list(whole.chunk(size))
    call: Callable[[], object]
    if what == "gloo all_gather":
        call = partial(dist.all_gather_into_tensor, whole, values)
    else:
        incoming = {peer: parts[peer].view(torch.uint8) for peer in peers(rank, size)}
        request = AllGather(values.view(torch.uint8), incoming, exact=True)
        round_ = Round(Verb.ALL_GATHER, torch.uint8, values.nbytes)
        call = _carried(Sums(session.transport), request, round_, session)
        parts[rank] = values

    def verify() -> None:
        wrong = [other for other, part in enumerate(parts) if not bool((part == other + 1).all())]
        if wrong:
            raise ArithmeticError(f"{what} has brought the wrong bytes of ranks {wrong}")

    return Operation(call, verify)


def _hops(size_bytes: int, session: Session) -> Operation:
    """Two ranks send each other a message at the same time, and the others wait."""
    out, into = torch.zeros(2, size_bytes, dtype=torch.uint8)
    peer = 1 - session.rank

    def program() -> Program[None]:
        for _ in range(HOPS if session.rank < 2 else 0):
            yield Exchange({peer: out}, {peer: into}, True, {peer: size_bytes})

    session.follow([], [])
    return Operation(lambda: session.run(program()), lambda: None)


def _adds(size_bytes: int) -> Operation:
    """All ranks add at the same time, as they do in a sum."""
    values, others = torch.zeros(size_bytes // 4), torch.zeros(size_bytes // 4)
    return Operation(lambda: values.add_(others), lambda: None)
