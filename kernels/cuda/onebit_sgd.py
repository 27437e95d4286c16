"""Signs with two means on a GPU; see :mod:`compressa.kernels.onebit_sgd`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8, Gradient
from ._arguments import feedback, i64, values
from ._device import CTA, WARP, launch
from ._work import team_for

_LONG = 1 << 16  # elements of a group, from where one block of threads should not do all of it
_RUN_ELEMS = {WARP: 8 * WARP, CTA: 8 * 4 * CTA}
"""How many elements a team makes signs of at once, a byte or four to a thread."""


def two_means_quantize(
    x: Gradient,
    bits: U8,
    means: F32,
    *,
    group: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    given = *values(x), *feedback(residual, loss_scale)
    groups, sizes = means.size // 2, (i64(x.size), i64(min(group, x.size)))
    if group < _LONG:
        team, threads = team_for(group)
        name = f"quantize_by_{team}"
        launch("onebit_sgd", name, groups, threads, *given, bits, means, *sizes)
        return
    launch("onebit_sgd", "find_means", groups, CTA, *given, means, *sizes)
    teams = groups * _runs(group, x.size, CTA)
    launch("onebit_sgd", "write_all_signs", teams, CTA, *given, bits, means, *sizes)


def two_means_dequantize(
    bits: U8, means: F32, out: F32, *, group: int, weight: float = 1.0, add: bool = False
) -> None:
    team, threads = team_for(group)
    teams = means.size // 2 * _runs(group, out.size, threads)
    sizes = i64(out.size), i64(min(group, out.size))
    how = np.float32(weight), np.bool_(add)
    launch("onebit_sgd", f"dequantize_by_{team}", teams, threads, bits, means, out, *sizes, *how)


def _runs(group: int, n: int, threads: int) -> int:
    """Of how many runs a group is made."""
    return -(-min(group, n) // _RUN_ELEMS[threads])
