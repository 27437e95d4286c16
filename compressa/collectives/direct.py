"""Direct collectives: every rank talks to every other, shifted so that no port is swamped.

Rank r sends to r+1, r+2, ... in this order, so that at any time each rank is the target of
one sender (round-robin, free of incast). reduce_scatter and all_gather each cost
(P-1) a + n (P-1)/P b; all_reduce is their composition. With a codec's combine it is the
scatter-reduce-all-gather of compressed data.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from compressa.collectives.base import Combine, Compute, Exchange, Program
from compressa.collectives.scratch import Scratch

STAGES_ALL_GATHER = 1
STAGES_ALL_REDUCE = 2


def peers(rank: int, size: int) -> list[int]:
    """Return the other ranks, the next one first."""
    return [(rank + shift) % size for shift in range(1, size)]


def all_gather(
    payload: torch.Tensor,
    incoming: Mapping[int, torch.Tensor],
    rank: int,
    size: int,
    *,
    exact: bool = True,
) -> Program[dict[int, torch.Tensor]]:
    """Send one buffer to everyone and receive everyone's.

    Args:
        payload: uint8; this rank's bytes.
        incoming: A buffer for each other rank.
        rank: This rank.
        size: Number of ranks.
        exact: Whether messages fill their buffers.

    Returns:
        The bytes of every rank, this one included.
    """
    everyone = {rank: payload}
    if size > 1:
        outgoing = dict.fromkeys(peers(rank, size), payload)
        # Every rank's payload has the same capacity, that of the buffers it arrives in.
        capacity = {peer: incoming[peer].numel() for peer in outgoing}
        everyone |= yield Exchange(outgoing, incoming, exact, capacity)
    return everyone


def all_reduce(combine: Combine, scratch: Scratch, rank: int, size: int) -> Program[None]:
    """Reduce-scatter, then all-gather; every rank ends with identical bits.

    Args:
        combine: The data and what to do with it.
        scratch: Memory for what arrives.
        rank: This rank.
        size: Number of ranks.
    """
    partials: list[torch.Tensor | None] = [None] * size
    others = peers(rank, size)
    if others:
        outgoing = {peer: combine.partial(peer) for peer in others}
        incoming = {peer: scratch.room(peer, combine.shard_bytes(rank)) for peer in others}
        capacity = {peer: combine.shard_bytes(peer) for peer in others}
        received = yield Exchange(outgoing, incoming, combine.exact, capacity)
        for peer, buffer in received.items():
            partials[peer] = buffer
    yield Compute(lambda: combine.reduce(rank, partials), "decode", combine.quick)
    if others:
        yield from _share(combine, scratch, rank, others)


def _share(combine: Combine, scratch: Scratch, rank: int, others: list[int]) -> Program[None]:
    """All-gather the sealed shards."""
    outgoing = dict.fromkeys(others, combine.sealed(rank))
    landings = {peer: combine.landing(peer) for peer in others}
    incoming = {
        peer: scratch.room(peer, combine.shard_bytes(peer)) if place is None else place
        for peer, place in landings.items()
    }
    capacity = dict.fromkeys(others, combine.shard_bytes(rank))
    received: dict[int, torch.Tensor] = yield Exchange(outgoing, incoming, combine.exact, capacity)

    def accept() -> None:
        for peer, sealed in received.items():
            if landings[peer] is None:
                combine.accept(peer, sealed)

    if any(place is None for place in landings.values()):
        yield Compute(accept, "decode")
