"""The largest elements above a floor, on a GPU: the kernels of ``select.cu`` in their order.

Nothing here waits: kernels decide on the GPU what the next ones do, which may be nothing.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, get_args

import numpy as np

from .._arrays import F32, U32, Gradient, block_count
from ..select import Unit
from ._arguments import feedback, values
from ._device import CTA, WARP, Argument, device, launch

SOURCE = "select"
SAMPLE = 8192  # elements; as in select.cu
LEAST_SAMPLED = 8 * SAMPLE  # elements that a sample saves work with
STATE_WORDS = 8208  # of 8 bytes; as in _select.cuh
TILE, WORDS = 2048, 32  # elements that a warp takes at a time, and words of a bitmap for them
GROUP = TILE * CTA // WARP
_DEVIATIONS = 4.0  # of a rank in a sample; hardly ever more
_RESIDENT = 8  # blocks that a processor holds; each adds a histogram to the whole one
_REFINED = (2, 3)  # numbers of the histograms that two surveys leave over


def select_largest(
    x: Gradient,
    threshold: float,
    indices: U32,
    chosen: F32,
    residual: F32 | None,
    scale: float,
    *,
    unit: Unit = "one",
    fixed: bool = False,
) -> Any:
    """Find the largest elements that reach a threshold, as many as there is room for.

    Args:
        x: At least one element.
        threshold: In units.
        indices: Receives the indices.
        chosen: Receives the values.
        residual: Added to the vector; receives what was not chosen.
        scale: The loss scale.
        unit: See `compressa.kernels.select`.
        fixed: Whether all of the room is filled if anything is not finite, or one place only.

    Returns:
        What the kernels know, in numbers of 8 bytes: how many were chosen, in how many surveys; the
        rest is theirs.
    """
    n, room, tiles = x.size, np.int64(indices.size), block_count(x.size, TILE)
    state, marks = device().empty(STATE_WORDS, np.uint64), device().empty(tiles * WORDS, np.uint64)
    source = (*values(x), *feedback(residual, scale), np.int64(n), state)
    limit = np.int32(get_args(Unit).index(unit)), np.float64(threshold)
    ranks = (np.int32(rank) for rank in _ranks(indices.size, n))
    launch(SOURCE, "begin", 1, CTA, *source, *ranks, *limit)

    squares = device().empty(tiles, np.float64) if unit == "rms" else None
    first = "survey_once" if squares is None else "survey_with_squares"
    for name in (first, "survey_again"):
        _launch_tiles(name, tiles, *source, marks, squares, *limit, np.uint64(room))
    for level in _REFINED:
        _launch_tiles("refine", tiles, *source, marks, np.int32(level))

    groups = block_count(n, GROUP)
    sums, before = device().empty(groups, np.uint32), device().empty(groups, np.uint64)
    _launch_tiles("count_chosen", tiles, *source, marks, sums, before, room)
    result = indices, chosen, room, np.bool_(fixed)
    _launch_tiles("write_chosen", tiles, *source, marks, before, *result)
    return state


def _launch_tiles(name: str, tiles: int, *arguments: Argument) -> None:
    resident = _RESIDENT * device().processors * CTA // WARP
    launch(SOURCE, name, min(tiles, resident), WARP, *arguments)


def _ranks(most: int, n: int) -> tuple[int, int]:
    """Ranks in the sample between which the last one chosen lies, hardly ever beside them.

    The first is zero where a sample is not worth it, and the second where it tells no upper bound.
    """
    if n < LEAST_SAMPLED:
        return 0, 0
    expected = most * SAMPLE / n
    spread = _DEVIATIONS * sqrt(expected)
    return int(expected + spread + _DEVIATIONS), int(max(expected - spread, 0.0))
