"""credit: priority, in chunks, of which a window is under way (ByteScheduler; Peng et al., 2019).

What has been handed to the network cannot be overtaken. With a window of bytes under way, an urgent
chunk waits for one window at most. A window that holds one chunk, and what the wire carries until
it is known that a chunk has left, never leaves the wire idle.
"""

from __future__ import annotations

import math
from dataclasses import replace

from compressa.schedulers.columns import Columns
from compressa.schedulers.conditions import Conditions
from compressa.schedulers.draft import Draft
from compressa.schedulers.link import Link
from compressa.schedulers.partition import LEAST_CHUNK_BYTES, chunk_bytes
from compressa.schedulers.policy import Policy
from compressa.schedulers.priority import by_need


def credit_bytes(link: Link, chunk: int) -> int:
    """Return the smallest window that keeps the wire busy: a chunk, and bandwidth x latency.

    Args:
        link: The wire.
        chunk: Bytes of a chunk.

    Example:
        >>> credit_bytes(Link(25e6, latency_s=2e-3), 131072)
        181072
    """
    return chunk + math.ceil(link.bytes_per_s * link.latency_s)


def draft_credit(columns: Columns, conditions: Conditions) -> Draft:
    """Draft a plan by need, in chunks, with a window.

    Args:
        columns: All transfers of one step.
        conditions: Its link says how large chunks and the window are, unless that is fixed there;
            without one, they are as the transport has them.
    """
    return sized(Draft("credit", by_need(columns, conditions.link)), columns, conditions)


def sized(draft: Draft, columns: Columns, conditions: Conditions) -> Draft:
    """Settle chunks and window for the messages of a plan in the making.

    A chunk is no larger than the largest message: the window would only be longer for it.
    """
    chunk, window, link = conditions.chunk_bytes, conditions.credit_bytes, conditions.link
    if link is not None:
        if chunk is None:
            best = chunk_bytes(int(columns.wire_bytes.sum()), link)
            chunk = min(best, window or best, max(_largest(draft, columns), LEAST_CHUNK_BYTES))
        chunk = chunk if link.chunk_bytes is None else min(chunk, link.chunk_bytes)
        window = window or credit_bytes(link, chunk)
    return replace(draft, chunk_bytes=chunk, credit_bytes=window)


def _largest(draft: Draft, columns: Columns) -> int:
    sizes: list[int] = columns.wire_bytes.tolist()
    fused = (sum([sizes[row] for row in group]) for group in draft.groups)
    return max([0, *sizes, *fused])


credit = Policy(
    "credit",
    "that order, reckoned with chunks and the smallest window that keeps the wire busy",
    draft_credit,
    paper="ByteScheduler, Peng et al. 2019",
)
