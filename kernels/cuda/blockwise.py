"""Block-wise quantisation on a GPU; see :mod:`compressa.kernels.blockwise`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, U8, Gradient, block_count
from ..blockwise import STATISTICS, Form
from ..philox import Noise
from ._arguments import feedback, random, values
from ._device import launch
from ._sums import launch_sums
from ._work import team_for


def quantize_blockwise(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    noise: Noise | None = None,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.blockwise.quantize_blockwise`."""
    team, threads = team_for(form.block)
    rounding = "" if noise is None else "at_random_"
    numbers = form.block, STATISTICS.index(form.statistic), form.top, form.bottom, form.zero
    launch(
        "blockwise",
        f"quantize_{form.bits}_{rounding}by_{team}",
        scales.size,
        threads,
        *values(x),
        *feedback(residual, scale),
        codes,
        scales,
        offsets,
        np.int64(x.size),
        *(np.int32(number) for number in numbers),
        np.float64(form.clip),
        *random(noise),
    )


def dequantize_blockwise(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """See :func:`compressa.kernels.blockwise.dequantize_blockwise`."""
    team, threads = team_for(form.block)
    launch(
        "blockwise",
        f"dequantize_{form.bits}_by_{team}",
        scales.size,
        threads,
        codes,
        scales,
        offsets,
        out,
        np.int64(out.size),
        np.int32(form.block),
        np.int32(form.zero),
        np.float32(weight),
        np.bool_(add),
    )


def sum_blockwise(
    codes: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    form: Form,
    offsets: Sequence[F32] | None = None,
    weight: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.blockwise.sum_blockwise`."""
    team, threads = team_for(form.block)
    launch_sums(
        "blockwise",
        f"sum_{form.bits}_by_{team}",
        block_count(out.size, form.block),
        threads,
        (codes, scales, offsets),
        out,
        np.int64(out.size),
        np.int32(form.block),
        np.int32(form.zero),
        np.float32(weight),
    )
