"""DGC's selection on a GPU; see :mod:`compressa.kernels.dgc`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..dgc import ADJUSTMENTS, FEWEST, MOST
from ._device import device
from ._select import Selection, draw_ranks

_SOURCE = "dgc"


def select_dgc(
    x: Gradient,
    k: int,
    sample: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    """Waits for the count, at the end."""
    selection, reaching = Selection(x, residual, loss_scale), device().empty(ADJUSTMENTS, np.uint64)
    ranked = draw_ranks(_SOURCE, selection, sample, [-(-k * sample // x.size)])
    ranked.finish("begin_dgc", residual, selection.state, reaching)
    limits = np.float64(FEWEST * k), np.float64(MOST * k)
    aim = np.uint64(k), np.uint64(indices.size), *limits
    selection.look(_SOURCE, "survey_dgc", *aim)
    selection.look(_SOURCE, "lower_threshold", *aim, np.float64(FEWEST), reaching)
    selection.survey_again()
    selection.write(indices, values)
    return selection.count
