"""Recursive doubling, as an all-gather: pairs swap all that they have, ever more.

lg P hops where P is a power of two. Each member beyond one gives its payload to a member within in
a first hop, and gets what it lacks in a last one (Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005). Payloads travel joined, so their lengths are
known beforehand. Cost: lg P a + (P-1) n b, and g for what is joined; with E ranks beyond a power of
two, up to 2 a + 2 E n b + (P-1) n b more.
"""

from __future__ import annotations

from compressa.collectives.butterfly import lg_core
from compressa.collectives.hop import Hop

_IDLE = Hop([], (), {})


def hops(index: int, size: int) -> list[Hop]:
    """Say who passes whose payloads to whom; see `compressa.collectives.all_gather`."""
    levels, core = lg_core(size), 1 << lg_core(size)
    if index >= core:
        inside, lacking = index - core, _all_but(index, size)
        return [Hop([inside], (index,), {}), *[_IDLE] * levels, Hop([], (), {inside: lacking})]
    swaps, beyond = [_swap(index, level, size) for level in range(levels)], index + core
    if beyond < size:
        first, last = Hop([], (), {beyond: (beyond,)}), Hop([beyond], _all_but(beyond, size), {})
        return [first, *swaps, last]
    return swaps if core == size else [_IDLE, *swaps, _IDLE]


def _swap(index: int, level: int, size: int) -> Hop:
    """What a member of the core and its peer have of a level's payloads."""
    peer = index ^ (1 << level)
    return Hop([peer], _known(index, level, size), {peer: _known(peer, level, size)})


def _known(index: int, level: int, size: int) -> tuple[int, ...]:
    """Whose payloads a member of the core has before a level: those of its group, and beyond it."""
    first, core = (index >> level) << level, 1 << lg_core(size)
    group = range(first, first + (1 << level))
    return (*group, *(each + core for each in group if each + core < size))


def _all_but(index: int, size: int) -> tuple[int, ...]:
    return (*range(index), *range(index + 1, size))
