"""credit: priority, in chunks, of which a window is under way (ByteScheduler; Peng et al., 2019).

What has been handed to the network cannot be overtaken. With a window of bytes under way, an urgent
chunk waits for one window at most. A window that holds one chunk, and what the wire carries until
it is known that a chunk has left, never leaves the wire idle.

Cutting S bytes into chunks of c costs S / c times the overhead, and an urgent chunk waits for up to
c / bandwidth. The sum of both is least at c = sqrt(S * overhead * bandwidth), which ByteScheduler
finds by trials (P3, Jayarajan et al., 2019, cuts likewise).
"""

from __future__ import annotations

import math
from dataclasses import replace

from compressa.schedulers.columns import Columns
from compressa.schedulers.link import Link
from compressa.schedulers.policy import Conditions, Draft, Policy
from compressa.schedulers.priority import by_need

LEAST_CHUNK_BYTES = 8 << 10
"""Less than some five full frames of Ethernet costs more in headers than it gains in order."""

MOST_CHUNK_BYTES = 4 << 20
_STEP_BYTES = 4 << 10


def chunk_bytes(total_bytes: int, link: Link) -> int:
    """Return the best size of chunks.

    Args:
        total_bytes: All that a rank sends in a step.
        link: On what.

    Returns:
        sqrt(S * overhead * bandwidth), as a multiple of 4 KiB between 8 KiB and 4 MiB; but never
        more than the transport makes of it.

    Example:
        >>> chunk_bytes(17_000_000, Link(25e6, overhead_s=50e-6))
        147456
    """
    best = math.sqrt(total_bytes * link.overhead_s * link.bytes_per_s)
    size = _STEP_BYTES * round(min(best, MOST_CHUNK_BYTES) / _STEP_BYTES)
    return min(max(size, LEAST_CHUNK_BYTES), link.chunk_bytes or MOST_CHUNK_BYTES)


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

    Args:
        draft: What is settled besides.
        columns: All transfers of one step.
        conditions: What is fixed there stays; without a link there, nothing else is settled.
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
