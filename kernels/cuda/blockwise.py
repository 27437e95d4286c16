"""Block-wise quantisation on a GPU; see :mod:`compressa.kernels.blockwise`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .._arrays import F32, U8, Gradient, block_count
from ..blockwise import STATISTICS, Form
from ..philox import Noise
from ._arguments import Arguments, feedback, i64, random, values
from ._device import launch
from ._work import launch_sums, quantizer_for, team_for


def quantize_blockwise(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    noise: Noise | None = None,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    kernels = _kernels(form)
    name, threads = kernels.quantize if noise is None else kernels.quantize_at_random
    launch(
        "blockwise",
        name,
        scales.size,
        threads,
        *values(x),
        *feedback(residual, loss_scale),
        codes,
        scales,
        offsets,
        i64(x.size),
        *kernels.quantizer,
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
    kernels = _kernels(form)
    launch(
        "blockwise",
        kernels.dequantize,
        scales.size,
        kernels.threads,
        codes,
        scales,
        offsets,
        out,
        i64(out.size),
        *kernels.dequantizer,
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
    kernels = _kernels(form)
    launch_sums(
        "blockwise",
        kernels.sum,
        block_count(out.size, form.block),
        kernels.threads,
        (codes, scales, offsets),
        out,
        i64(out.size),
        *kernels.dequantizer,
        np.float32(weight),
    )


class _Kernels(NamedTuple):
    """Those of a form.

    Attributes:
        threads: Of a team that decodes.
        quantize: The one that quantises, and threads of its teams.
        quantize_at_random: Likewise.
        quantizer: Arguments of those that quantise.
        dequantizer: Arguments of the others.
    """

    threads: int
    quantize: tuple[str, int]
    quantize_at_random: tuple[str, int]
    dequantize: str
    sum: str
    quantizer: Arguments
    dequantizer: Arguments


@lru_cache
def _kernels(form: Form) -> _Kernels:
    team, threads = team_for(form.block)
    quantizer, quantizer_threads = quantizer_for(form.bits, form.block)
    at_random, at_random_threads = quantizer_for(form.bits, form.block, at_random=True)
    block, zero = np.int32(form.block), np.int32(form.zero)
    statistic = np.int32(STATISTICS.index(form.statistic))
    limits = np.int32(form.top), np.int32(form.bottom)
    return _Kernels(
        threads,
        (f"quantize_{form.bits}_{quantizer}", quantizer_threads),
        (f"quantize_{form.bits}_at_random_{at_random}", at_random_threads),
        f"dequantize_{form.bits}_by_{team}",
        f"sum_{form.bits}_by_{team}",
        (block, statistic, *limits, zero, np.float64(form.clip)),
        (block, zero),
    )
