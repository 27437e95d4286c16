"""partition: how payloads are cut, so that what is more urgent need not wait for their end.

Cutting S bytes into chunks of c costs S / c times the overhead; an urgent chunk waits for up to
c / bandwidth. The sum of both is least at c = sqrt(S * overhead * bandwidth) (ByteScheduler,
Peng et al., 2019, where tuning finds it by trials; P3, Jayarajan et al., 2019, cuts likewise).
"""

from __future__ import annotations

import math

from compressa.schedulers.link import Link

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
