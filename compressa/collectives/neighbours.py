"""Neighbours: a payload goes to some ranks, and those of some come; nobody passes anything on."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from compressa.collectives.base import Exchange, Program
from compressa.collectives.cost import Stage


def neighbours(
    payload: torch.Tensor,
    incoming: Mapping[int, torch.Tensor],
    receivers: Collection[int],
    *,
    exact: bool,
) -> Program[Mapping[int, torch.Tensor]]:
    """Send a payload to some ranks, and receive those of some.

    Args:
        payload: uint8; sent to each receiver.
        incoming: A buffer for each rank that is heard from; all as long as a payload may be.
        receivers: To whom it is sent.
        exact: Whether every payload fills a buffer.

    Returns:
        What has come, by rank.
    """
    room = max((buffer.numel() for buffer in incoming.values()), default=0)
    most = {} if exact else dict.fromkeys(receivers, room)
    outgoing = dict.fromkeys(receivers, payload)
    received: Mapping[int, torch.Tensor] = yield Exchange(outgoing, incoming, exact, most)
    return received


def stages(size_bytes: int, peers: int) -> list[Stage]:
    """Return what its one exchange costs; nothing without peers.

    Args:
        size_bytes: Of one payload, at most.
        peers: To how many ranks it is sent, at most.
    """
    return [Stage(peers, peers * size_bytes)] if peers else []
