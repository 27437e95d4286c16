"""Chunks of NumPy arrays; see :mod:`compressa.kernels.chunks`.

A chunk goes through three short loops while it lies in the first-level cache: sum with the
residual, norm, and back; meanwhile memory is asked for the chunks to come. It is passed over once.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, U32
from ..chunks import FLOAT32_MAX, NO_CHUNK
from ..scratch import scratch
from ..threads import over_slices
from ._candidates import Entries
from ._feedback import factors_of
from ._jit import jit, nested
from ._lanes import sum_squares
from ._listing import LEAST_PIECE, room_for
from ._prefetch import AHEAD, fetch
from ._rank import sample_size
from ._selection import select_largest, select_short
from ._view import view


@nested
def _add(x: F32, residual: F32, back: np.float32, p: F32) -> None:
    for i in range(x.size):
        p[i] = residual[i] + x[i] * back


@nested
def _keep(p: F32, residual: F32) -> None:
    for i in range(residual.size):
        residual[i] = p[i]


@nested
def _keep_accepted(p: F32, residual: F32, largest: np.float32) -> bool:
    """Keep what is not too large; returns whether that is all."""
    whole = True
    for i in range(residual.size):
        if np.abs(p[i]) <= largest:
            residual[i] = p[i]
        else:
            whole = False
    return whole


@nested
def _clear(x: F32) -> None:
    for i in range(x.size):
        x[i] = np.float32(0)


@jit
def _absorb(
    x: F32,
    residual: F32,
    norms: F64,
    chunk: int,
    back: np.float32,
    clear: bool,
    largest: np.float32,
) -> None:
    sums, most = np.empty(min(chunk, x.size), np.float32), np.float64(largest) * largest
    for c in range(norms.size):
        low, high = c * chunk, min((c + 1) * chunk, x.size)
        now, left, p = view(x, low, high), view(residual, low, high), view(sums, 0, high - low)
        _add(now, left, back, p)
        fetch(x, low + AHEAD, high + AHEAD)
        fetch(residual, low + AHEAD, high + AHEAD)
        norms[c] = sum_squares(p)
        if norms[c] <= most:  # so is each square
            _keep(p, left)
        elif not _keep_accepted(p, left, largest):
            norms[c] = np.nan
        if clear:
            _clear(now)


@nested
def _take(residual: F32, chosen: U32, values: F32, chunk: int) -> None:
    for k in range(chosen.size):
        low = int(np.int64(chosen[k])) * chunk
        size = min(chunk, residual.size - low)
        _keep(view(residual, low, low + size), view(values, k * chunk, k * chunk + size))
        _clear(view(values, k * chunk + size, (k + 1) * chunk))
        _clear(view(residual, low, low + size))


@jit
def _take_chosen(
    finite: bool, hold: bool, residual: F32, chosen: U32, values: F32, chunk: int
) -> None:
    if finite and not hold:
        _take(residual, chosen, values, chunk)
    else:
        _clear(values)
    if not finite:
        chosen[:] = NO_CHUNK


@jit
def _take_largest(
    norms: F32,
    residual: F32,
    hold: bool,
    sample: F32,
    entries: Entries,
    chosen: U32,
    values: F32,
    chunk: int,
) -> None:
    """All in one, where the norms are no more than one piece of a selection."""
    one, largest = np.float32(1), np.empty(chosen.size, np.float32)
    out = chosen, largest
    finite = select_short(norms, None, (one, one), chosen.size, 0, sample, entries, out) >= 0
    _take_chosen(finite, hold, residual, chosen, values, chunk)


@nested
def _add_weighted(values: F32, out: F32, weight: np.float32) -> None:
    for i in range(out.size):
        out[i] += weight * values[i]


@jit
def _give(values: F32, chosen: U32, out: F32, chunk: int, weight: np.float32, or_nan: bool) -> None:
    if or_nan and chosen.size and np.int64(chosen[chosen.size - 1]) * chunk >= out.size:
        out[:] = np.float32(np.nan)
        return
    for k in range(chosen.size):
        low, own = int(np.int64(chosen[k])) * chunk, k * chunk
        size = min(chunk, out.size - low)
        if size > 0:
            _add_weighted(view(values, own, own + size), view(out, low, low + size), weight)


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
    back = factors_of(loss_scale)[1]

    def work(low: int, high: int) -> None:
        own = norms[low // chunk : -(-high // chunk)]
        _absorb(x[low:high], residual[low:high], own, chunk, back, clear, np.float32(largest))

    over_slices(x.size, chunk, work)


def take_largest_chunks(
    norms: F32, residual: F32, chosen: U32, values: F32, *, chunk: int, hold: bool = False
) -> None:
    if norms.size <= LEAST_PIECE:
        sample = scratch("listing.sample", sample_size(norms.size), np.float32)
        rooms = sample, room_for(norms.size)
        _take_largest(norms, residual, hold, *rooms, chosen, values, chunk)
        return
    largest = scratch("chunks.largest", chosen.size, np.float32)
    finite = select_largest(norms, chosen.size, 0, chosen, largest, None, 1.0) >= 0
    _take_chosen(finite, hold, residual, chosen, values, chunk)


def add_existing_chunks(
    values: F32, chosen: U32, out: F32, *, chunk: int, weight: float = 1.0, or_nan: bool = False
) -> None:
    """Add the chunks that exist; with ``or_nan``, out is NaN unless the last one does."""
    _give(values, chosen, out, chunk, np.float32(weight), or_nan)
