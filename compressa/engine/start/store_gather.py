"""All-gather by torch's store: how ranks that have no connection yet learn of each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from compressa.transports.rendezvous import AllGather


def all_gather_by(store: Store, rank: int, size: int) -> AllGather:
    """Return a function that brings every rank's bytes to every rank; collective.

    Args:
        store: A part of torch's that nobody else uses. What is told stays there as long as it.
        rank: This rank.
        size: Number of ranks.

    Returns:
        A function of the bytes, their purpose, which serves once, and the longest wait in seconds.
        It raises RuntimeError if some rank does not come in time, or the store is gone.
    """
    shared: Any = store  # mypy takes only text, which a value need not be

    def all_gather(data: bytes, what: str, deadline_s: float) -> list[bytes]:
        names = [f"{what}/{each}" for each in range(size)]
        shared.set(names[rank], data)
        shared.wait(names, timedelta(seconds=deadline_s))
        told: list[bytes] = shared.multi_get(names)
        return told

    return all_gather
