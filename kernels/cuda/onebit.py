"""Scaled signs on a GPU; see :mod:`compressa.kernels.onebit`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, U8, Gradient, block_count
from ._arguments import feedback, i32, i64, values
from ._device import launch
from ._work import launch_sums, quantizer_for, team_for


def sign_quantize(
    x: Gradient,
    bits: U8,
    scales: F32,
    *,
    block: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    team, threads = quantizer_for(1, block)
    launch(
        "onebit",
        f"quantize_{team}",
        scales.size,
        threads,
        *values(x),
        *feedback(residual, loss_scale),
        bits,
        scales,
        i64(x.size),
        i32(block),
    )


def sign_dequantize(
    bits: U8, scales: F32, out: F32, *, block: int, weight: float = 1.0, add: bool = False
) -> None:
    team, threads = team_for(block)
    launch(
        "onebit",
        f"dequantize_by_{team}",
        scales.size,
        threads,
        bits,
        scales,
        out,
        i64(out.size),
        i32(block),
        np.float32(weight),
        np.bool_(add),
    )


def sum_signs(
    bits: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    block: int,
    weight: float = 1.0,
) -> None:
    team, threads = team_for(block)
    launch_sums(
        "onebit",
        f"sum_by_{team}",
        block_count(out.size, block),
        threads,
        (bits, scales),
        out,
        i64(out.size),
        i32(block),
        np.float32(weight),
    )
