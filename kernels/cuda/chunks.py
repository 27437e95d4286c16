"""Chunks on a GPU; see :mod:`compressa.kernels.chunks`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, U32, block_count
from ..chunks import FLOAT32_MAX
from ._arguments import feedback, i64
from ._device import CTA, WARP, device, launch
from ._select import select_largest

_WARPS_TILE = 1024  # elements that a warp absorbs together, of whole chunks
_PIECE = 1024  # elements of a chunk that a warp moves


def absorb_chunks(
    x: F32,
    residual: F32,
    norms: F64,
    *,
    chunk: int,
    loss_scale: float = 1.0,
    clear: bool = False,
    largest: float = FLOAT32_MAX,
) -> None:
    short = chunk <= _WARPS_TILE
    launch(
        "chunks",
        "absorb_by_warps" if short else "absorb_by_ctas",
        block_count(norms.size, _WARPS_TILE // chunk) if short else norms.size,
        WARP if short else CTA,
        x,
        residual,
        norms,
        i64(x.size),
        i64(chunk),
        feedback(None, loss_scale)[2],
        np.bool_(clear),
        np.float32(largest),
    )


def take_largest_chunks(
    norms: F32, residual: F32, chosen: U32, values: F32, *, chunk: int, hold: bool = False
) -> None:
    if not chosen.size:
        return
    largest = device().empty(chosen.size, np.float32)
    select_largest(norms, 0.0, chosen, largest, None, 1.0, fixed=True)
    launch(
        "chunks",
        "take_chunks",
        chosen.size * block_count(chunk, _PIECE),
        WARP,
        residual,
        i64(residual.size),
        chosen,
        largest,
        i64(chosen.size),
        values,
        i64(chunk),
        np.bool_(hold),
    )


def add_existing_chunks(
    values: F32, chosen: U32, out: F32, *, chunk: int, weight: float = 1.0, or_nan: bool = False
) -> None:
    """Add the chunks that exist; with ``or_nan``, out is NaN unless the last one does.

    The chunks must be different ones: they are added side by side.
    """
    launch(
        "chunks",
        "add_chunks",
        chosen.size * block_count(chunk, _PIECE),
        WARP,
        values,
        chosen,
        i64(chosen.size),
        out,
        i64(out.size),
        i64(chunk),
        np.float32(weight),
        np.bool_(or_nan),
    )
