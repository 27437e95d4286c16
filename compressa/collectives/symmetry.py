"""Symmetry: whether all ranks of an algorithm have the same to do, but for whom they do it with.

What one of them takes, all of them take: a simulation then needs only one.
"""

from __future__ import annotations

from collections.abc import Callable

Symmetry = Callable[[int], bool]
"""Of a number of ranks: whether none of them has a part of its own in any exchange."""


def always(ranks: int) -> bool:
    """Ranks differ by a shift around the ring only."""
    return True


def in_pairs(ranks: int) -> bool:
    """Ranks swap in pairs; those beyond a power of two fold, which is a part of its own."""
    return ranks.bit_count() == 1


def never(ranks: int) -> bool:
    """There is a root, or ranks that speak for others."""
    return False
