"""Natural compression on a GPU; see :mod:`compressa.kernels.natural`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, U8, Gradient, block_count
from ..natural import GROUP
from ..philox import Noise
from ._arguments import feedback, i64, random, values
from ._device import CTA, WARP, launch
from ._work import launch_sums

_SPAN = GROUP * CTA // WARP  # elements whose random numbers a block of threads draws at a time


def natural_quantize(
    x: Gradient,
    exponents: U8,
    signs: U8,
    *,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    launch(
        "natural",
        "quantize",
        block_count(x.size, _SPAN),
        CTA,
        *values(x),
        *feedback(residual, loss_scale),
        exponents,
        signs,
        i64(x.size),
        *random(noise),
    )


def natural_dequantize(
    exponents: U8, signs: U8, out: F32, *, weight: float = 1.0, add: bool = False
) -> None:
    launch(
        "natural",
        "dequantize",
        block_count(out.size, GROUP),
        WARP,
        exponents,
        signs,
        out,
        i64(out.size),
        np.float32(weight),
        np.bool_(add),
    )


def sum_natural(
    exponents: Sequence[U8], signs: Sequence[U8], out: Gradient, *, weight: float = 1.0
) -> None:
    launch_sums(
        "natural",
        "sums",
        block_count(out.size, GROUP),
        WARP,
        (exponents, signs),
        out,
        i64(out.size),
        np.float32(weight),
    )
