"""Neighbours: a payload goes to some ranks, and theirs come; nobody passes anything on."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from compressa.collectives.base import Exchange, Program
from compressa.collectives.cost import Stage


def neighbours(
    payload: torch.Tensor, incoming: Mapping[int, torch.Tensor], *, exact: bool
) -> Program[Mapping[int, torch.Tensor]]:
    """Exchange payloads with the ranks that there is a buffer for.

    Args:
        payload: uint8; sent to each of them.
        incoming: A buffer for each; as long as a payload may be.
        exact: Whether every payload fills it.

    Returns:
        What has come, by rank.
    """
    most = {} if exact else {peer: buffer.numel() for peer, buffer in incoming.items()}
    outgoing = dict.fromkeys(incoming, payload)
    received: Mapping[int, torch.Tensor] = yield Exchange(outgoing, incoming, exact, most)
    return received


def stages(size_bytes: int, peers: int) -> list[Stage]:
    """Return what it costs: see `compressa.collectives.cost`."""
    return [Stage(peers, peers * size_bytes)] if peers else []
