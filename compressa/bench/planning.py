"""How long it takes to plan a step."""

from __future__ import annotations

import time
from collections.abc import Sequence

from compressa.schedulers import POLICIES, Conditions, Link, Transfer, staggered


def planning_ms(chunks: int = 10_000, repeats: int = 5) -> dict[str, float]:
    """Measure how long each policy needs for a step, at its fastest.

    Each chunk is a transfer of its own, the most that there can be to decide. The wire takes about
    as long as backward and forward, so that messages queue, and `auto` has to try everything.

    Args:
        chunks: How many there are.
        repeats: How often each policy plans.

    Returns:
        Milliseconds by policy.
    """
    transfers, conditions = _step(chunks)
    found = {}
    for name, policy in {**POLICIES, "staggered": staggered}.items():
        took_s = []
        for _ in range(repeats):
            begin_s = time.perf_counter()
            policy(transfers, conditions)
            took_s.append(time.perf_counter() - begin_s)
        found[name] = 1e3 * min(took_s)
    return found


def _step(chunks: int) -> tuple[Sequence[Transfer], Conditions]:
    sizes = [20_000 + 7919 * unit % 160_000 for unit in range(chunks)]
    backward_s = 2e-4 * chunks
    transfers = [
        Transfer(
            unit,
            0,
            size,
            ready_s=2e-4 * (unit + 1),
            need_s=backward_s + 1e-4 * (chunks - 1 - unit),
            encode_s=1e-5,
            decode_s=1e-5,
        )
        for unit, size in enumerate(sizes)
    ]
    compute_s = 3e-4 * chunks
    return transfers, Conditions(Link(sum(sizes) / compute_s, 1e-4, 2e-5), compute_s)
