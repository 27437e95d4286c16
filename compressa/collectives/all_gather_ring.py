"""Ring all-gather: every rank passes on to the next what it has heard from the one before.

Each talks to its neighbours only, and a payload travels alone, so that it may be of any length.
Cost: (P-1) (a + n b), as if sent directly, but P-1 hops wait for each other.
"""

from __future__ import annotations

from compressa.collectives.hop import Hop


def hops(index: int, size: int) -> list[Hop]:
    """Say who passes whose payloads to whom; see `compressa.collectives.all_gather`."""
    after, before = (index + 1) % size, (index - 1) % size
    return [
        Hop([after], ((index - hop) % size,), {before: ((before - hop) % size,)})
        for hop in range(size - 1)
    ]
