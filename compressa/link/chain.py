"""Times chains of operations on a rank. Needs no more than the standard library."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

LEAST_CHAIN_S = 0.05
"""A chain takes so long, at least: ranks leave a barrier some tenths of a millisecond apart."""

_LEAST_CHAINS, _MOST_CHAINS = 3, 7
_LONG = 10.0  # where one operation takes so many budgets, it is not repeated
_MOST_OPERATIONS = 2000


class Ask(NamedTuple):
    """What ranks are asked to time.

    Attributes:
        what: Name of a method.
        size_bytes: Of what is summed, or of what each rank gives.
        budget_s: Seconds for it.
        rounds: How many operations to time, whatever the budget; 0 for chains of them.
    """

    what: str
    size_bytes: int
    budget_s: float
    rounds: int = 0


class Timed(NamedTuple):
    """What was found.

    Attributes:
        samples_s: Seconds of an operation, by chain.
        operations: How many there were in all.
    """

    samples_s: list[float]
    operations: int


def timed(
    call: Callable[[], object],
    verify: Callable[[], object],
    barrier: Callable[[], object],
    slowest: Callable[[float], float],
    budget_s: float,
    rounds: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timed:
    """Time operations that all ranks do together; all must call this.

    The first one is checked, and warms up: windows open, and memory is touched for the first time.
    Only if it takes very long, it is all there is.

    Args:
        call: Does one.
        verify: Looks at what the first one did.
        barrier: Waits for all ranks.
        slowest: Gives the largest of the numbers that the ranks call it with.
        budget_s: Seconds for all of it.
        rounds: How many operations to time, each by itself, whatever the budget; 0 for chains.
        clock: Tells seconds.

    Returns:
        Seconds on this rank.
    """

    def sample(count: int) -> float:
        barrier()
        begin_s = clock()
        for _ in range(count):
            call()
        return (clock() - begin_s) / count

    first_s = sample(1)
    verify()
    if rounds:
        return Timed([sample(1) for _ in range(rounds)], 1 + rounds)
    if slowest(first_s) >= _LONG * budget_s:
        return Timed([first_s], 1)
    count, longer, operations = 0, 1, 1
    while longer >= 2 * count:  # or what disturbed a short one would have made all of them short
        count = longer
        samples_s = [sample(count)]
        operations += count
        usual_s = max(slowest(samples_s[0]), 1e-7)
        longer = min(math.ceil(LEAST_CHAIN_S / usual_s), _MOST_OPERATIONS)
    count = max(count, longer)
    fit = min(int(budget_s / (count * usual_s)), _MOST_CHAINS)
    while len(samples_s) < max(fit, _LEAST_CHAINS if usual_s < budget_s else 1):
        samples_s.append(sample(count))
        operations += count
    return Timed(samples_s, operations)
