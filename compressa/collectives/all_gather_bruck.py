"""Bruck's all-gather: in each hop every rank passes on all that it has, and so has twice as much.

Rank r sends to r-1, r-2, r-4 and so on, and hears from the ranks on the other side; the last hop
brings what is left. ceil(lg P) hops for any number of ranks, the fewest that one message at a time
allows (Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
in multiport message-passing systems", 1997). Payloads travel joined, so their lengths are known
beforehand. Cost: ceil(lg P) a + (P-1) n b, and g for what is joined.
"""

from __future__ import annotations

from compressa.collectives.hop import Hop


def hops(index: int, size: int) -> list[Hop]:
    """Say who passes whose payloads to whom; see `compressa.collectives.all_gather`."""
    found = []
    for distance, count in _doublings(size):
        to, source = (index - distance) % size, (index + distance) % size
        found.append(Hop([to], _run(index, count, size), {source: _run(source, count, size)}))
    return found


def _doublings(size: int) -> list[tuple[int, int]]:
    """By hop, how far away a rank is that is sent to, and how many payloads it is sent."""
    distances = [1 << hop for hop in range((size - 1).bit_length())]
    return [(distance, min(distance, size - distance)) for distance in distances]


def _run(first: int, count: int, size: int) -> tuple[int, ...]:
    """So many members from one on; members go round."""
    return tuple((first + i) % size for i in range(count))
