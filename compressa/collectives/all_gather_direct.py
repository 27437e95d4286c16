"""Direct all-gather: every rank sends its payload to every other, in one exchange.

Rank r sends to r+1, r+2 and so on, so that at any time each rank is the target of one sender: no
port is swamped. Nothing waits for another's message, and nothing is passed on, so that payloads
may be of any length. Cost: (P-1) (a + n b).
"""

from __future__ import annotations

from compressa.collectives.hop import Hop


def hops(index: int, size: int) -> list[Hop]:
    """Say who passes whose payloads to whom; see `compressa.collectives.all_gather`."""
    others = [(index + shift) % size for shift in range(1, size)]
    return [Hop(others, (index,), {other: (other,) for other in others})] if others else []
