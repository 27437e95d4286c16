"""Selection by threshold and by index on a GPU; see :mod:`compressa.kernels.select`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient, block_count
from ..select import Reference
from . import _arguments
from ._device import CTA, device, launch
from ._select import SOURCE, select_largest
from ._work import batches_for


def select_above(
    x: Gradient,
    threshold: float,
    indices: U32,
    values: F32,
    *,
    relative_to: Reference = "one",
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    """Waits for the count, at the end."""
    if not x.size:
        return 0
    return select_largest(
        x, threshold, indices, values, residual, loss_scale, relative_to=relative_to
    ).count


def select_at(
    x: Gradient,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    noted, count = device().empty(2, np.uint32), _arguments.i64(indices.size)
    source = (
        *_arguments.values(x),
        *_arguments.feedback(residual, loss_scale),
        _arguments.i64(x.size),
    )
    launch(SOURCE, "note_first", 1, CTA, residual, source[-1], indices, count, noted)
    launch(SOURCE, "keep_all", *batches_for(x.size), *source, noted)
    taken = indices, values, count, noted
    launch(SOURCE, "take_out", block_count(indices.size, CTA), CTA, *source, *taken)
