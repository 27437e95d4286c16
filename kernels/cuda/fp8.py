"""Floats of eight bits on a GPU; see :mod:`compressa.kernels.fp8`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .._arrays import F32, U8, Gradient, block_count
from ..fp8 import Format
from ._arguments import Arguments, feedback, i64, values
from ._device import launch
from ._work import launch_sums, quantizer_for, team_for


@lru_cache
def _form(block: int, form: Format) -> Arguments:
    """``int block, int mantissa, int bias, float largest``."""
    integers = (np.int32(number) for number in (block, form.mantissa, form.bias))
    return *integers, np.float32(form.largest)


def quantize_fp8(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Format,
    block: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    team, threads = quantizer_for(8, block)
    launch(
        "fp8",
        f"quantize_{team}",
        scales.size,
        threads,
        *values(x),
        *feedback(residual, loss_scale),
        codes,
        scales,
        i64(x.size),
        *_form(block, form),
    )


def dequantize_fp8(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    form: Format,
    block: int,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    team, threads = team_for(block)
    launch(
        "fp8",
        f"dequantize_by_{team}",
        scales.size,
        threads,
        codes,
        scales,
        out,
        i64(out.size),
        *_form(block, form),
        np.float32(weight),
        np.bool_(add),
    )


def sum_fp8(
    codes: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    form: Format,
    block: int,
    weight: float = 1.0,
) -> None:
    team, threads = team_for(block)
    launch_sums(
        "fp8",
        f"sum_by_{team}",
        block_count(out.size, block),
        threads,
        (codes, scales),
        out,
        i64(out.size),
        *_form(block, form),
        np.float32(weight),
    )
