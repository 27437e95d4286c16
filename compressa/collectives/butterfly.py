"""What butterflies share: ranks beyond the largest power of two fold their values into others'.

A butterfly pairs members whose numbers differ in one bit, so it needs a power of two. Each member
beyond it gives its values to one within in a first hop, and gets the result in a last one (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005).
"""

from __future__ import annotations

from compressa.collectives.accumulator import Accumulator, Span
from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.hop import Finals, Spans, give_hop, idle, reduce_hop, share_hop
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch


def lg_core(ranks: int) -> int:
    """Return lg of the largest power of two that is not above `ranks`, which is at least 1."""
    return ranks.bit_length() - 1


def partner(group: RankGroup) -> int | None:
    """Return the rank on the other side of the fold from this one, if there is one."""
    core = 1 << lg_core(group.size)
    if group.index >= core:
        return group.at(group.index - core)
    return group.at(group.index + core) if group.index + core < group.size else None


def fold(values: Accumulator, span: Span, group: RankGroup, scratch: Scratch) -> Program[bool]:
    """Have the core hold the sum of all, in one hop; none if the group is a power of two.

    Args:
        values: What is summed; this rank's own when it begins.
        span: Which of it.
        group: Who takes part.
        scratch: Memory for what comes in.

    Returns:
        Whether this rank belongs to the core, and so goes on.

    Raises:
        PayloadError: What the other side of the fold gives can not be a partial sum of the span.
    """
    core = 1 << lg_core(group.size)
    inside, peer = group.index < core, partner(group)
    if core == group.size:
        return True
    if peer is None:
        yield from idle()
    elif inside:
        yield from reduce_hop(values, scratch, {}, span, [peer])
    else:
        yield from give_hop(values, scratch, peer, span)
    return inside


def unfold(
    values: Accumulator, spans: Spans, group: RankGroup, scratch: Scratch, finals: Finals
) -> Program[None]:
    """Bring the result from the core to the others, in one hop; see `fold`.

    Args:
        values: Where it goes; on the core it is there.
        spans: Of what `finals` has the messages, side by side and in order.
        group: Who took part in `fold`.
        scratch: Memory for messages that do not land in place.
        finals: The result's messages by span, complete on the core; the others' are added here.

    Raises:
        PayloadError: What comes can not be a part of the result.
    """
    core, peer = 1 << lg_core(group.size), partner(group)
    if core == group.size:
        return
    if peer is None:
        yield from idle()
    elif group.index < core:
        yield from share_hop(values, scratch, finals, [peer], spans, {})
    else:
        yield from share_hop(values, scratch, finals, (), (), {peer: spans})


def folded(size_bytes: int, ranks: int, core: list[Stage]) -> list[Stage]:
    """Return what each hop costs, with those of the fold around those of the core.

    Args:
        size_bytes: Of all values.
        ranks: How many take part, whether a power of two or not.
        core: The hops of the largest power of two among them.
    """
    core_ranks = 1 << lg_core(ranks)
    if core_ranks == ranks:
        return core
    outside = (ranks - core_ranks) / ranks
    fold = Stage(1, size_bytes, size_bytes, "in", share=outside)
    inside = [stage._replace(share=core_ranks / ranks) for stage in core]
    return [fold, *inside, Stage(1, size_bytes, way="out", share=outside)]
