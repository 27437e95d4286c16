"""Natural dithering on a GPU; see :mod:`compressa.kernels.natural_dithering`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8, Gradient
from ..natural_dithering import Dithering
from ..philox import Noise
from ._arguments import Arguments, feedback, i64, random, values
from ._device import launch
from ._work import quantizer_for, team_for


def _numbers(form: Dithering) -> Arguments:
    """``int block, int levels, int bits``."""
    return np.int32(form.block), np.int32(form.levels), np.int32(form.bits)


def dither(
    x: Gradient,
    codes: U8,
    norms: F32,
    *,
    form: Dithering,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    team, threads = quantizer_for(1, form.block)  # its bits are in planes, as signs are
    launch(
        "natural_dithering",
        f"dither_{team}",
        norms.size,
        threads,
        *values(x),
        *feedback(residual, loss_scale),
        codes,
        norms,
        i64(x.size),
        *_numbers(form),
        np.bool_(form.norm == "l2"),
        *random(noise),
    )


def undither(
    codes: U8, norms: F32, out: F32, *, form: Dithering, weight: float = 1.0, add: bool = False
) -> None:
    team, threads = team_for(form.block)
    launch(
        "natural_dithering",
        f"undither_by_{team}",
        norms.size,
        threads,
        codes,
        norms,
        out,
        i64(out.size),
        *_numbers(form),
        np.float32(weight),
        np.bool_(add),
    )
