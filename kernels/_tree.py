"""The one order in which floats are summed, so that every device gets the same bits."""

from __future__ import annotations

import numpy as np

from ._arrays import F64

LANES = 16


def tree_sum(terms: F64) -> float:
    """Sum by 16 strided lanes, each in order, then by halving; all in float64.

    Padding the last row with zeros changes no bits: a lane starts at +0, and +0 + 0 = +0.
    """
    rows = -(-terms.size // LANES)
    padded = np.zeros(rows * LANES)
    padded[: terms.size] = terms
    lanes = np.zeros(LANES)
    for row in padded.reshape(rows, LANES):
        lanes += row
    half = LANES // 2
    while half:
        lanes = lanes[:half] + lanes[half:]
        half //= 2
    return float(lanes[0])
