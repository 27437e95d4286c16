"""Operations: what a rank does for each row; for the cost model it also exchanges and adds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.bench.network.method import Operation, nothing, repeated
from compressa.bench.network.methods import ADD, BY_NAME, HOP, HOPS, PAIR
from compressa.bench.network.sums import AUTO, summed
from compressa.collectives.base import Exchange, Program
from compressa.collectives.choice import BACKEND
from compressa.collectives.team import Team
from compressa.engine.link_file import Figures
from compressa.engine.session import Session


def prepare(
    what: str, size_bytes: int, session: Session, figures: Figures | None = None
) -> Operation:
    """Return an operation; all ranks must ask for the same.

    Args:
        what: Name of a method, or one of those for the cost model.
        size_bytes: Of what is summed, or of what each rank gives or exchanges.
        session: Where.
        figures: What `auto` chooses by; the static rule if not given.
    """
    if what == HOP:
        return _hops(size_bytes, session, range(session.size))
    if what == PAIR:
        return _hops(size_bytes, session, (0, session.size - 1))
    if what == ADD:
        return _adds(size_bytes)
    if what in (AUTO, BACKEND):
        return summed(what, size_bytes, session, None if figures is None else figures.costs)
    return BY_NAME[what].operation(size_bytes, session)


def exchange_of(what: str) -> tuple[tuple[str, int], ...]:
    """Return what the transport has to be set to for it, beside the defaults."""
    return BY_NAME[what].exchange if what in BY_NAME else ()


def _hops(size_bytes: int, session: Session, ranks: Sequence[int]) -> Operation:
    """Some ranks send to each other at the same time, so many bytes each; the others wait."""
    part_bytes = max(size_bytes // (len(ranks) - 1), 1)
    everyone = Team.everyone(session.rank, session.size)
    peers = [peer for peer in everyone.others if peer in ranks]
    if session.rank not in ranks:
        peers = []
    out = torch.zeros(part_bytes, dtype=torch.uint8)
    into = {peer: torch.zeros_like(out) for peer in peers}

    def program() -> Program[None]:
        for _ in range(HOPS if peers else 0):
            yield Exchange(dict.fromkeys(peers, out), into, True, dict.fromkeys(peers, part_bytes))

    return Operation(repeated(session, program), nothing)


def _adds(size_bytes: int) -> Operation:
    """All ranks add at the same time, as they do in a sum."""
    values, others = torch.zeros(size_bytes // 4), torch.zeros(size_bytes // 4)
    return Operation(lambda: values.add_(others), nothing)
