"""What ranks time for the cost model: exchanges, additions and sums, each done by all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from compressa.aggregators.base import AllReduce, Request, Round, Verb
from compressa.collectives.base import Exchange, LoweredSum, Program
from compressa.collectives.choice import Costs
from compressa.collectives.dense import DenseValues
from compressa.collectives.lowering import (
    SCRATCH,
    VALUES,
    Extent,
    HopTable,
    Table,
    lowered_hops,
)
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.engine.session import Session
from compressa.engine.units.sums import Sums
from compressa.link.chain import Ask, Timed, timed

HOP, PAIR, ADD = "hop", "pair", "add"
"""Exchanges of all ranks or of two of them, and additions."""

HOPS = 4
"""Exchanges in one `hop` or `pair`: what starts and ends a program should weigh little."""


def nothing() -> None:
    """There is nothing to do."""


@dataclass(frozen=True)
class Operation:
    """What is done on one size, on one rank.

    Attributes:
        call: Does it once.
        verify: To be called after the first time; raises if the result is wrong.
        close: Lets go of what it holds; to be called after the last time.
    """

    call: Callable[[], object]
    verify: Callable[[], object]
    close: Callable[[], object] = nothing

    def timed(self, ask: Ask, session: Session) -> Timed:
        """Do it as often as is asked for, and close it. Collective.

        Args:
            ask: How often, or for how long; the same on every rank.
            session: With the other ranks.

        Returns:
            This rank's seconds for each chain of operations.

        Raises:
            ArithmeticError: The first one's result is wrong.
            TransportError: A rank is lost, or does not come.
        """
        collectives = session.barrier, session.slowest
        found = timed(self.call, self.verify, *collectives, ask.budget_s, ask.rounds)
        self.close()
        return found


def repeated(session: Session, program: Callable[[], Program[None]]) -> Callable[[], object]:
    """Return what runs a program each time that it is called, and waits for its end.

    Args:
        session: Where; from now on no exchange there is more urgent than another.
        program: Makes the program, which exchanges with the same calls of other ranks.
    """
    session.follow([], [])
    return lambda: session.run(program())


def prepare(what: str, size_bytes: int, session: Session) -> Operation:
    """Return an operation; all ranks must ask for the same.

    Args:
        what: `HOP`, `PAIR`, `ADD`, or a way of summing.
        size_bytes: Of what is exchanged, added or summed.
        session: Where.
    """
    if what == HOP:
        return _hops(size_bytes, session, range(session.size))
    if what == PAIR:
        return _hops(size_bytes, session, (0, session.size - 1))
    if what == ADD:
        return _adds(size_bytes)
    return summed(what, size_bytes, session)


def _hops(size_bytes: int, session: Session, ranks: Sequence[int]) -> Operation:
    """Some ranks send to each other at the same time, so many bytes each; the others wait."""
    part_bytes = max(size_bytes // (len(ranks) - 1), 1)
    everyone = RankGroup.everyone(session.rank, session.size)
    peers = [peer for peer in everyone.others if peer in ranks]
    if session.rank not in ranks:
        peers = []
    out = torch.zeros(part_bytes, dtype=torch.uint8)
    into = {peer: torch.zeros_like(out) for peer in peers}

    def program() -> Program[None]:
        for _ in range(HOPS if peers else 0):
            yield Exchange(dict.fromkeys(peers, out), into, True, dict.fromkeys(peers, part_bytes))

    found = _lowered_hops(session, peers, part_bytes)
    if found is None:
        return Operation(repeated(session, program), nothing)
    table, lowered = found

    def lowered_program() -> Program[None]:
        yield LoweredSum(lowered, out, table.exchanges, table.sent_bytes, table.peers)

    return Operation(repeated(session, lowered_program), nothing)


def _lowered_hops(
    session: Session, peers: Sequence[int], part_bytes: int
) -> tuple[Table, object] | None:
    """The same as a table, where sums are carried as tables; None elsewhere."""
    sends = dict.fromkeys(peers, Extent(VALUES, 0, part_bytes))
    receives = {p: Extent(SCRATCH, i * part_bytes, part_bytes) for i, p in enumerate(peers)}
    hops = [HopTable(stage, sends, receives) for stage in range(HOPS if peers else 0)]
    table = lowered_hops(hops, part_bytes, len(peers) * part_bytes)
    program = session.transport.lower(table, torch.uint8)
    return None if program is None else (table, program)


def _adds(size_bytes: int) -> Operation:
    """All ranks add at the same time, as they do in a sum."""
    values, others = torch.zeros(size_bytes // 4), torch.zeros(size_bytes // 4)
    return Operation(lambda: values.add_(others), nothing)


def summed(what: str, size_bytes: int, session: Session, costs: Costs | None = None) -> Operation:
    """Return an operation that sums a float32 vector over all ranks, as the engine does it.

    Args:
        what: One of our algorithms, "backend", or "auto".
        size_bytes: Of the vector, a multiple of 4.
        session: Where.
        costs: What "auto" chooses by.
    """
    values = values_of(size_bytes, session)
    call = _sum(what, values, session, costs)
    return Operation(call, lambda: verify(what, values, session.size))


def values_of(size_bytes: int, session: Session) -> torch.Tensor:
    """Return what this rank gives: float32[max(size_bytes // 4, 1)], all rank + 1."""
    return torch.full((max(size_bytes // 4, 1),), float(session.rank + 1))


def _sum(
    what: str, values: torch.Tensor, session: Session, costs: Costs | None
) -> Callable[[], object]:
    scratch = Scratch(values.device)
    round_ = Round(Verb.ALL_REDUCE, values.dtype, values.nbytes, dense=True)
    sums = Sums(session.transport, what, costs=costs)
    request = AllReduce(DenseValues(values), scratch)
    return carried(sums, request, round_, session)


def carried(sums: Sums, request: Request, round_: Round, session: Session) -> Callable[[], object]:
    """Return what does once, each time that it is called, what an aggregator asks for.

    Args:
        sums: Carries it, by the algorithm that it was made for.
        request: Of one round; its memory is used each time.
        round_: The round.
        session: Where; all ranks must call it together.
    """
    session.follow(sums.transfers(0, [round_]), sums.ordered([round_]))
    carrier = sums.carrier(round_)
    return lambda: session.run(carrier(**vars(request)))


def verify(what: str, values: torch.Tensor, size: int) -> None:
    """Look at all elements; and make them zero, so that many sums in a row do not overflow.

    Args:
        what: What has summed them, for the message.
        values: float32[n], from `values_of`, summed over all ranks.
        size: Number of ranks.

    Raises:
        ArithmeticError: An element is wrong.
    """
    wrong = int((values != size * (size + 1) / 2).sum())
    if wrong:
        raise ArithmeticError(f"{what} has summed {wrong} of {values.numel()} elements wrongly")
    values.zero_()
