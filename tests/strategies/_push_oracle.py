"""What ranks that push shares do, in NumPy; see `_averaging_oracle`. Algorithm 1 of SGP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from _averaging_oracle import Array, Rank, Values


def trained(meetings: Sequence[Array], ranks: int, steps: int, every: int) -> list[list[Values]]:
    """Return the de-biased parameters of each rank after each step, and after `sync`.

    Args:
        meetings: P of each meeting, a row for each receiver; they come again and again.
        ranks: How many.
        steps: How many.
        every: Steps from one meeting to the next.
    """
    everyone = [Rank(number) for number in range(ranks)]  # hold z, as gradients are taken there
    biased = [dict(rank.values) for rank in everyone]
    weights = np.ones(ranks)
    history = []
    for number in range(1, steps + 1):
        for rank, x in zip(everyone, biased, strict=True):
            before = dict(rank.values)
            rank.step(number)
            for name in x:
                x[name] = x[name] + rank.values[name] - before[name]
        if number % every == 0:
            p = meetings[(number // every - 1) % len(meetings)]
            weights = p @ weights
            names = biased[0].keys()
            mixed = {n: np.tensordot(p, np.stack([x[n] for x in biased]), 1) for n in names}
            biased = [{n: mixed[n][i] for n in names} for i in range(ranks)]
            for rank, x, w in zip(everyone, biased, weights, strict=True):
                rank.values = {n: x[n] / w for n in names}
        history.append([{n: v.copy() for n, v in r.values.items()} for r in everyone])
    mean = {n: np.mean([x[n] for x in biased], axis=0) for n in biased[0]}
    return [*history, [mean] * ranks]
