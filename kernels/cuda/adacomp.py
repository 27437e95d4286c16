"""AdaComp's selection on a GPU; see :mod:`compressa.kernels.adacomp`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient, block_count
from ._device import CTA, device, launch
from ._select import Selection, resident

_SOURCE = "adacomp"
_STRETCH = 2048  # elements that a block of threads takes at a time; as in adacomp.cu


def select_adacomp(
    x: Gradient,
    bin_elems: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    """Waits for the count, at the end."""
    if not x.size:
        return 0
    selection = Selection(x, residual, loss_scale)
    bin_elems, room = min(bin_elems, x.size), np.uint64(indices.size)
    large = block_count(x.size, bin_elems) if bin_elems > _STRETCH else 0
    largest, words = device().empty(large, np.uint32), selection.marks.size
    cleared = selection.marks, np.int64(words), largest, np.int64(large)
    blocks = min(block_count(words, CTA), resident(CTA))
    launch(_SOURCE, "begin_adacomp", blocks, CTA, residual, selection.state, *cleared)
    own = *selection.vector, selection.state, selection.marks, np.int64(bin_elems)
    if large:
        blocks = min(block_count(x.size, _STRETCH), resident(CTA))
        launch(_SOURCE, "find_largest_of_bins", blocks, CTA, *own, largest)
        launch(_SOURCE, "mark_large_bins", blocks, CTA, *own, room, largest)
    else:
        bins = _bins_at_a_time(bin_elems)
        blocks = min(block_count(x.size, bins * bin_elems), resident(CTA))
        launch(_SOURCE, "mark_bins", blocks, CTA, *own, np.int32(bins), room)
    selection.write(indices, values)
    return selection.count


def _bins_at_a_time(bin_elems: int) -> int:
    """As many as fit; if possible a number that leaves addresses as even as they are."""
    fit = _STRETCH // bin_elems
    return fit - fit % 4 if fit >= 4 else fit
