"""Passing bytes on as they are: what broadcasts are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from compressa.collectives.accumulator import Span
from compressa.collectives.base import Exchange, Program
from compressa.collectives.rank_group import RankGroup

_ALIGN_BYTES = 64


def pass_hop(
    outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]
) -> Program[None]:
    """Send to some ranks while others send to this one; what comes lands in place.

    Args:
        outgoing: uint8, by rank that is sent to.
        incoming: uint8, by rank that is heard from; as long as what it sends.
    """
    capacity = {peer: part.numel() for peer, part in outgoing.items()}
    yield Exchange(outgoing, incoming, capacity_bytes=capacity)


def cuts(size_bytes: int, parts: int) -> tuple[Span, ...]:
    """Cut so many bytes into nearly equal parts, some of which may be empty.

    Args:
        size_bytes: How many.
        parts: How many parts; they begin at multiples of 64 bytes.
    """
    return Span(0, size_bytes).cut(parts, _ALIGN_BYTES)


def cut(data: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Cut memory as `cuts` does.

    Args:
        data: 1-D uint8.
        parts: How many parts.

    Returns:
        Views of `data`, in order.
    """
    return [data[span.start : span.stop] for span in cuts(data.numel(), parts)]


def check_sources(group: RankGroup, sources: Sequence[int]) -> None:
    """Refuse sources that are not different members of a group, or none.

    Args:
        group: Who takes part.
        sources: Indices in the group, not ranks.

    Raises:
        ValueError: There is none, one is no member, or one is there twice.
    """
    if (
        not sources
        or len(set(sources)) < len(sources)
        or not set(sources) <= set(range(group.size))
    ):
        raise ValueError(f"sources {list(sources)} are not different members of {group.size} ranks")
