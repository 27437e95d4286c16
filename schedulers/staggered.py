"""staggered: hosts that send to one parameter server take turns.

When all hosts send to one at a time, their bursts meet in the queue of the server's port, which
overflows; what is lost is sent again, and waits for it (incast). In time slots, host i of H sends
in the i-th, at most k at a time, each with the k-th part of the port. The port is as busy as
before, so the last slot ends when the last byte would have come anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapreplace
from math import ceil
from typing import NamedTuple

from compressa.schedulers.columns import Columns
from compressa.schedulers.conditions import Conditions
from compressa.schedulers.credit import draft_credit
from compressa.schedulers.draft import Draft
from compressa.schedulers.link import Link
from compressa.schedulers.policy import Policy
from compressa.schedulers.predict import outlook


class Slot(NamedTuple):
    """When a host sends, in seconds from the start of the round."""

    start_s: float
    end_s: float


def slots(sizes_bytes: Sequence[int], link: Link, at_once: int = 1) -> list[Slot]:
    """Share one server's port out in time, for one round.

    Args:
        sizes_bytes: What each host sends.
        link: The way into the server.
        at_once: How many hosts may send at a time; each has the same part of the rate.

    Returns:
        By host its slot. At most `at_once` overlap; a host's begins where an earlier one ends.

    Example:
        >>> [slot.start_s for slot in slots([1000] * 4, Link(bytes_per_s=1000), at_once=2)]
        [0.0, 0.0, 2.0, 2.0]
    """
    lanes = [0.0] * at_once
    return [_next_slot(lanes, 0.0, size, link) for size in sizes_bytes]


def draft_staggered(columns: Columns, conditions: Conditions) -> Draft:
    """Draft a plan by need, as `credit` does, with slots for the hosts of a parameter server.

    Args:
        columns: All transfers of one host's step, the same for all.
        conditions: With one host, or without a link, there is nothing to share out.
    """
    draft = replace(draft_credit(columns, conditions), policy="staggered")
    return with_slots(columns, draft, conditions)


def with_slots(columns: Columns, draft: Draft, conditions: Conditions) -> Draft:
    """Add slots to a plan in the making, if several hosts send to one."""
    if conditions.link is None or conditions.hosts == 1:
        return draft
    starts_s = _rounds(columns, draft, conditions, conditions.link)
    by_place = [starts_s[row] for row in draft.rows.tolist()]
    return replace(draft, starts_s=tuple(zip(*by_place, strict=True)))


def _rounds(
    columns: Columns, draft: Draft, conditions: Conditions, link: Link
) -> dict[int, list[float]]:
    """By row, when each host may begin it: one round after the other, as each can begin.

    The rounds come in the order in which they would if every host had its part of the port.
    """
    hosts, lanes = conditions.hosts, [0.0] * conditions.at_once
    part = replace(link, bytes_per_s=link.bytes_per_s / hosts)
    ahead = outlook(columns, draft, part, conditions.compute_s)
    chunk = link.chunk_within(draft.chunk_bytes)
    starts_s = {}
    for row in ahead.launched().tolist():
        size, ready_s = int(columns.wire_bytes[row]), float(ahead.could_s[row])
        round_ = [_next_slot(lanes, ready_s, size, link, chunk) for _ in range(hosts)]
        starts_s[row] = [slot.start_s for slot in round_]
    return starts_s


def _next_slot(
    lanes: list[float], ready_s: float, size_bytes: int, link: Link, chunk: int | None = None
) -> Slot:
    """Take the lane that is free first."""
    start_s = max(lanes[0], ready_s)
    chunks = ceil(size_bytes / chunk) if chunk else 1
    end_s = start_s + link.wire_s(len(lanes) * size_bytes, max(chunks, 1))
    heapreplace(lanes, end_s)
    return Slot(start_s, end_s)


staggered = Policy(
    "staggered", "hosts that send to one parameter server take turns", draft_staggered
)
