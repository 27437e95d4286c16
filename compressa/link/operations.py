"""What ranks time for the cost model: exchanges, additions and sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.collectives.base import Exchange, Program
from compressa.collectives.rank_group import RankGroup
from compressa.engine.session import Session
from compressa.link.operation import Operation, nothing, repeated
from compressa.link.sums import summed

HOP, PAIR, ADD = "hop", "pair", "add"
"""Exchanges of all ranks or of two of them, and additions."""

HOPS = 4
"""Exchanges in one `hop` or `pair`: what starts and ends a program should weigh little."""


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

    return Operation(repeated(session, program), nothing)


def _adds(size_bytes: int) -> Operation:
    """All ranks add at the same time, as they do in a sum."""
    values, others = torch.zeros(size_bytes // 4), torch.zeros(size_bytes // 4)
    return Operation(lambda: values.add_(others), nothing)
