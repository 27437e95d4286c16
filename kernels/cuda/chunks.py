"""Chunks on a GPU; see :mod:`compressa.kernels.chunks`.

`take_largest_chunks` and `add_existing_chunks` return a bool, so they wait for the GPU at their
end; what is moved does not wait for the host.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, U32, block_count
from ._arguments import feedback
from ._device import CTA, WARP, device, launch

_WARPS_TILE = 1024  # elements that a warp absorbs together, of whole chunks
_PIECE = 1024  # elements of a chunk that a warp moves


def absorb_chunks(
    x: F32, residual: F32, norms: F64, *, chunk: int, scale: float = 1.0, clear: bool = False
) -> None:
    """See :func:`compressa.kernels.chunks.absorb_chunks`."""
    short = chunk <= _WARPS_TILE
    launch(
        "chunks",
        "absorb_by_warps" if short else "absorb_by_ctas",
        block_count(norms.size, _WARPS_TILE // chunk) if short else norms.size,
        WARP if short else CTA,
        x,
        residual,
        norms,
        np.int64(x.size),
        np.int64(chunk),
        feedback(None, scale)[2],
        np.bool_(clear),
    )


def take_largest_chunks(
    norms: F32, residual: F32, chosen: U32, values: F32, *, chunk: int, hold: bool = False
) -> bool:
    """See :func:`compressa.kernels.chunks.take_largest_chunks`."""
    finite, count = device().empty(1, np.uint32), np.int64(chosen.size)
    launch("chunks", "choose_chunks", 1, CTA, norms, np.int64(norms.size), chosen, count, finite)
    launch(
        "chunks",
        "take_chunks",
        chosen.size * block_count(chunk, _PIECE),
        WARP,
        finite,
        residual,
        np.int64(residual.size),
        chosen,
        count,
        values,
        np.int64(chunk),
        np.bool_(hold),
    )
    return bool(device().read(finite))


def add_existing_chunks(
    values: F32, chosen: U32, out: F32, *, chunk: int, weight: float = 1.0
) -> bool:
    """Add, as :func:`compressa.kernels.chunks.add_chunks`, if all chunks exist; return whether.

    The chunks must be different ones: they are added side by side.
    """
    exist, count = device().empty(1, np.uint32), np.int64(chosen.size)
    chunks = np.int64(block_count(out.size, chunk))
    launch("chunks", "are_below", 1, CTA, chosen, count, chunks, exist)
    launch(
        "chunks",
        "add_chunks",
        chosen.size * block_count(chunk, _PIECE),
        WARP,
        exist,
        values,
        chosen,
        count,
        out,
        np.int64(out.size),
        np.int64(chunk),
        np.float32(weight),
    )
    return bool(device().read(exist))
