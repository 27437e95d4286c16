"""Chunks in NumPy; see :mod:`compressa.kernels.chunks`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._arrays import F32, F64, U32
from ..chunks import FLOAT32_MAX, NO_CHUNK
from ._tree import tree_sum


def absorb_chunks(
    x: F32,
    residual: F32,
    norms: F64,
    *,
    chunk: int,
    scale: float = 1.0,
    clear: bool = False,
    largest: float = FLOAT32_MAX,
) -> None:
    """See :func:`compressa.kernels.chunks.absorb_chunks`."""
    p = residual + x * (np.float32(1) / np.float32(scale))
    accepted = np.abs(p) <= np.float32(largest)
    for c in range(norms.size):
        part = slice(c * chunk, (c + 1) * chunk)
        norm = tree_sum(p[part].astype(np.float64) ** 2)
        norms[c] = norm if accepted[part].all() else np.nan
    residual[:] = np.where(accepted, p, residual)
    if clear:
        x[:] = 0


def take_largest_chunks(
    norms: F32, residual: F32, chosen: U32, values: F32, *, chunk: int, hold: bool = False
) -> None:
    """See :func:`compressa.kernels.chunks.take_largest_chunks`."""
    values[:] = 0
    if not np.isfinite(norms).all():
        chosen[:] = NO_CHUNK
        return
    chosen[:] = np.sort(np.argsort(-norms, kind="stable")[: chosen.size])
    if not hold:
        for place, part in _pairs(values, chosen, residual, chunk):
            place[: part.size] = part
            part[:] = 0


def add_existing_chunks(
    values: F32, chosen: U32, out: F32, *, chunk: int, weight: float = 1.0, or_nan: bool = False
) -> None:
    """Add the chunks that exist; with ``or_nan``, out is NaN unless the last one does."""
    if or_nan and chosen.size and int(chosen[-1]) * chunk >= out.size:
        out[:] = np.nan
        return
    for place, part in _pairs(values, chosen, out, chunk):
        part += np.float32(weight) * place[: part.size]


def _pairs(values: F32, chosen: U32, whole: F32, chunk: int) -> Iterator[tuple[F32, F32]]:
    for k, c in enumerate(chosen.tolist()):
        yield values[k * chunk : (k + 1) * chunk], whole[c * chunk : (c + 1) * chunk]
