"""SIDCo on a GPU; see :mod:`compressa.kernels.sidco`.

Stages are fitted on the GPU, in float64 with its logarithm, which may differ from the CPU's by one
unit of the last place; of the threshold in float32 that changes hardly ever a bit.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..sidco import base_ranks, most_counted, sampled
from ._device import CTA, device, launch
from ._select import Selection, draw_ranks, low_rank

_SOURCE = "sidco"
_STAGE_WORDS = 4  # of 8 bytes; as in sidco.cu


def select_sidco(
    x: Gradient,
    k: int,
    stages: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    """Waits for the count, at the end."""
    selection, count = Selection(x, residual, loss_scale), np.int32(stages)
    fits = device().empty((stages + 1) * _STAGE_WORDS, np.uint64)  # the last counts what is not 0
    ranks = _least_rank(indices.size, x.size), *base_ranks(k, x.size, stages)
    ranked = draw_ranks(_SOURCE, selection, sampled(x.size), ranks)
    ranked.finish("begin_sidco", residual, selection.state, fits)

    sums = stages * selection.tiles
    totals, numbers = device().empty(sums, np.float64), device().empty(sums, np.uint32)
    selection.look(_SOURCE, "survey_sidco", fits, count, totals, numbers)
    summed = fits, count, totals, numbers, np.int64(selection.tiles)
    limits = np.uint64(k), np.uint64(most_counted(k))
    launch(_SOURCE, "fit_stages", stages, CTA, selection.state, *summed, *limits)
    wanted = np.uint64(k), np.uint64(indices.size)
    selection.look(_SOURCE, "choose_stage", fits, count, *wanted)
    selection.survey_again()
    selection.write(indices, values)
    return selection.count


def _least_rank(most: int, n: int) -> int:
    """Rank in the sample of a magnitude that the smallest chosen hardly ever falls short of."""
    sample = sampled(n)
    return min(low_rank(most * sample / n), sample)
