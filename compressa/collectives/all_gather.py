"""All-gather algorithms by name: whose payloads each rank passes to whom, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from compressa.collectives import (
    all_gather_bruck,
    all_gather_direct,
    all_gather_recursive_doubling,
    all_gather_ring,
)
from compressa.collectives.base import Exchange, Program
from compressa.collectives.cost import Stage, Symmetry, Way, always, in_pairs
from compressa.collectives.hop import Hop
from compressa.collectives.scratch import Scratch

DIRECT = "direct"
"""What needs no figures of the link: one hop, whatever the payloads."""


class AllGatherAlgorithm(NamedTuple):
    """One way to bring every rank's payload to all.

    Attributes:
        hops: Its exchanges, for a member among so many: as many at every member, and at none more
            bytes than at the first.
        alike: The all-reduce that exchanges most alike. Where that was measured, this one is taken
            to be off its formula by as much.
        symmetric: Whether all of so many ranks have the same to do.
    """

    hops: Callable[[int, int], list[Hop]]
    alike: str
    symmetric: Symmetry

    def stages(self, size_bytes: int, ranks: int) -> list[Stage]:
        """Return what each exchange costs, in their order.

        Args:
            size_bytes: Of one rank's payload, at most.
            ranks: How many have one, at least 1.
        """
        return [_stage(hop, size_bytes) for hop in self.hops(0, ranks)]

    def joins(self, ranks: int) -> bool:
        """Return whether payloads of so many ranks travel together: their lengths must be known."""
        return any(len(hop.sent) > 1 for hop in self.hops(0, ranks))


def _stage(hop: Hop, size_bytes: int) -> Stage:
    """What a hop costs; to copy payloads side by side takes what combining does."""
    sent, heard = len(hop.to) * len(hop.sent), sum(map(len, hop.heard.values()))
    way: Way = "both" if sent and heard else "out" if sent else "in"
    copied = len(hop.sent) if len(hop.sent) > 1 else 0
    messages = max(len(hop.to), len(hop.heard))
    return Stage(messages, max(sent, heard) * size_bytes, copied * size_bytes, way)


ALL_GATHERS = {
    DIRECT: AllGatherAlgorithm(all_gather_direct.hops, "all_to_all", always),
    "ring": AllGatherAlgorithm(all_gather_ring.hops, "ring", always),
    "recursive_doubling": AllGatherAlgorithm(
        all_gather_recursive_doubling.hops, "recursive_doubling", in_pairs
    ),
    "bruck": AllGatherAlgorithm(all_gather_bruck.hops, "recursive_doubling", always),
}
"""Of those that take the same time, the first is chosen."""


def all_gather(
    algorithm: AllGatherAlgorithm,
    payload: torch.Tensor,
    incoming: Mapping[int, torch.Tensor],
    rank: int,
    scratch: Scratch,
    gathered: torch.Tensor | None = None,
    *,
    exact: bool,
) -> Program[dict[int, torch.Tensor]]:
    """Bring every rank's payload to all.

    Args:
        algorithm: Of `ALL_GATHERS`; one that joins payloads only if they are `exact`.
        payload: uint8; this rank's bytes.
        incoming: A buffer for each other rank's payload, all of the same length: the most that one
            may have.
        rank: This rank.
        scratch: Memory for what travels joined.
        gathered: The memory of all payloads, if they lie side by side on every rank.
        exact: Whether payloads fill their buffers.

    Returns:
        The bytes of every rank, this one included: where its buffer is, or in scratch memory.
    """
    everyone = {rank: payload}
    capacity = next(iter(incoming.values())).numel() if incoming else 0
    whole = gathered if exact and algorithm.hops is all_gather_direct.hops else None
    for hop in _hops(algorithm, rank, len(incoming) + 1):
        rooms, messages = {}, {}
        for peer, whose in hop.heard.items():
            alone, size = len(whose) == 1, len(whose) * capacity
            rooms[peer] = incoming[whose[0]] if alone else scratch.room(("in", whose), size)
        if hop.to:
            messages = dict.fromkeys(hop.to, _message(hop.sent, everyone, scratch))
        sizes = dict.fromkeys(hop.to, len(hop.sent) * capacity)
        received = yield Exchange(messages, rooms, exact, sizes, gathered=whole)
        for peer, whose in hop.heard.items():
            message = received[peer]
            parts = (message,) if len(whose) == 1 else message.chunk(len(whose))
            everyone.update(zip(whose, parts, strict=True))
    return everyone


@lru_cache(maxsize=16)
def _hops(algorithm: AllGatherAlgorithm, index: int, size: int) -> list[Hop]:
    """They are the same in every step."""
    return algorithm.hops(index, size)


def _message(
    whose: Sequence[int], everyone: Mapping[int, torch.Tensor], scratch: Scratch
) -> torch.Tensor:
    """A payload where it is; several side by side: to copy them takes less than what it spares."""
    if len(whose) == 1:
        return everyone[whose[0]]
    parts = [everyone[each] for each in whose]
    room = scratch.room(("out", whose), sum(part.numel() for part in parts))
    return torch.cat(parts, out=room)
