"""Casts on a GPU; see :mod:`compressa.kernels.casts`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, Gradient
from ..casts import Half
from ._arguments import feedback, i64, values
from ._device import launch
from ._work import batches_for, launch_sums, threads_for


def narrow(x: F32, out: Half, *, residual: F32 | None = None, loss_scale: float = 1.0) -> None:
    launch(
        "casts",
        "narrow",
        *batches_for(x.size),
        x,
        *values(out),
        *feedback(residual, loss_scale),
        i64(x.size),
    )


def widen(x: Half, out: F32, *, weight: float = 1.0, add: bool = False) -> None:
    launch(
        "casts",
        "widened",
        *batches_for(out.size),
        *values(x),
        out,
        i64(out.size),
        np.float32(weight),
        np.bool_(add),
    )


def sum_casts(x: Sequence[Half], out: Gradient, *, weight: float = 1.0) -> None:
    kind = values(x[0])[1] if x else np.int32(0)
    launch_sums(
        "casts",
        "sums",
        *threads_for(out.size, 4),
        (x,),
        out,
        kind,
        i64(out.size),
        np.float32(weight),
    )
