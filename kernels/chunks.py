"""Whole chunks of a vector: their squared norms, and moving them out of a residual and back.

Chunked top-k keeps the chunks of largest norm. Since every rank keeps the same ones, their values
can be summed on the way. An array of n elements has ceil(n / chunk) chunks, the last maybe short.

Exact arithmetic:

* p = residual + x * (1 / loss_scale) in float32, with 1 / loss_scale rounded first and the product
  before the sum: p is unscaled, as residuals are.
* The squared norm of a chunk sums float64 squares by the fixed tree of `onebit`: 16 strided lanes,
  each in order, then halving. Squares of float32 never overflow it.

Nobody waits to hear that a norm is not finite: what was to be chosen then says `NO_CHUNK`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from ._arrays import F32, F64, U32, block_count, check_array, check_feedback
from ._backends import backend
from ._numpy import tree_sum
from .bitpack import check_indices

NO_CHUNK = 2**32 - 1
"""What is written for a chunk where none is chosen; there are never so many."""

FLOAT32_MAX = float(np.finfo(np.float32).max)

Missing = Literal["refuse", "skip", "nan"]
"""What becomes of numbers that no chunk has; see `add_chunks`."""


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
    """Add ``x`` to the residual, and measure what is there now, in one pass over memory.

    residual = p where |p| <= ``largest``; elsewhere it is left as it was.

    Args:
        x: float32[n]; set to zero with ``clear``, else only read.
        residual: float32[n], updated in place.
        norms: float64[ceil(n / chunk)], overwritten with each chunk's sum of squared p; NaN where
            some p is above ``largest``, or NaN.
        chunk: Elements of a chunk.
        loss_scale: Loss scale that ``x`` carries and the residual does not.
        clear: Whether to leave ``x`` empty, for what will be put there.
        largest: The largest |p| that may be kept, a float32 number.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``chunk``, ``loss_scale`` or ``largest`` is wrong.
    """
    check_array("x", x, np.float32, writable=clear)
    check_feedback(residual, x.size, loss_scale)
    _check_chunk(chunk)
    if not 0 < largest <= FLOAT32_MAX:
        raise ValueError(f"largest must be positive and a float32 number, not {largest}")
    check_array("norms", norms, np.float64, (block_count(x.size, chunk),), writable=True)
    if kernel := backend("chunks", x, residual, norms):
        options = {"loss_scale": loss_scale, "clear": clear, "largest": largest}
        kernel.absorb_chunks(x, residual, norms, chunk=chunk, **options)
        return
    p = residual + x * (np.float32(1) / np.float32(loss_scale))
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
    """Move the chunks of the largest norms to ``values``, in order; zeros are left behind.

    Of equal norms the first are chosen. Unless all norms are finite none is: ``chosen`` are
    `NO_CHUNK` then, and ``values`` zeros.

    Example:
        >>> import numpy as np
        >>> residual, values = np.arange(1, 6, dtype=np.float32), np.empty(4, np.float32)
        >>> norms, chosen = np.array([9, 1, 4], np.float32), np.empty(2, np.uint32)
        >>> take_largest_chunks(norms, residual, chosen, values, chunk=2)
        >>> chosen.tolist(), values.tolist(), residual.tolist()
        ([0, 2], [1.0, 2.0, 5.0, 0.0], [0.0, 0.0, 3.0, 4.0, 0.0])

    Args:
        norms: float32[ceil(n / chunk)], not negative.
        residual: float32[n], updated in place.
        chosen: uint32[k], overwritten with increasing numbers of chunks.
        values: float32[k * chunk], overwritten; a short chunk is padded with zeros.
        chunk: Elements of a chunk.
        hold: Only choose; ``values`` are zeros, and the residual stays.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``chunk`` is wrong.
    """
    _check_chosen(values, "values", chosen, residual, "residual", chunk)
    check_array("norms", norms, np.float32, (block_count(residual.size, chunk),))
    if chosen.size > norms.size:
        raise ValueError(f"{chosen.size} chunks can not be chosen among {norms.size}")
    if kernel := backend("chunks", norms, residual, chosen, values):
        kernel.take_largest_chunks(norms, residual, chosen, values, chunk=chunk, hold=hold)
        return
    values[:] = 0
    if not np.isfinite(norms).all():
        chosen[:] = NO_CHUNK
        return
    chosen[:] = np.sort(np.argsort(-norms, kind="stable")[: chosen.size])
    if not hold:
        for sent, part in _pairs(values, chosen, residual, chunk):
            sent[: part.size] = part
            part[:] = 0


def add_chunks(
    values: F32,
    chosen: U32,
    out: F32,
    *,
    chunk: int,
    weight: float = 1.0,
    missing: Missing = "refuse",
) -> None:
    """Out += weight * value at the chosen chunks, product rounded first; puts back what was taken.

    Args:
        values: float32[k * chunk], as `take_largest_chunks` writes them.
        chosen: uint32[k], increasing numbers of chunks, or all of them `NO_CHUNK`.
        out: float32[n], added to.
        chunk: Elements of a chunk.
        weight: Factor on every value.
        missing: What becomes of a number that no chunk has, as `NO_CHUNK`: "refuse" raises, for
            which a GPU is waited for as `check_indices` does; "skip" adds the others; "nan" makes
            all of ``out`` NaN if it is the last one, so that an overflow is seen.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``chunk`` or ``missing`` is wrong, or there is no such chunk;
            nothing is written then, but where a GPU's answers come later: all others are added.
    """
    if missing not in get_args(Missing):
        raise ValueError(f"missing must be one of {get_args(Missing)}, not {missing!r}")
    _check_chosen(values, "values", chosen, out, "out", chunk)
    if missing == "refuse":
        check_indices(chosen, block_count(out.size, chunk))
    add_existing_chunks(values, chosen, out, chunk=chunk, weight=weight, or_nan=missing == "nan")


def add_existing_chunks(
    values: F32, chosen: U32, out: F32, *, chunk: int, weight: float = 1.0, or_nan: bool = False
) -> None:
    """As `add_chunks`, unchecked: skip numbers that no chunk has, or have them make all NaN."""
    if kernel := backend("chunks", values, chosen, out):
        kernel.add_existing_chunks(values, chosen, out, chunk=chunk, weight=weight, or_nan=or_nan)
        return
    if or_nan and chosen.size and int(chosen[-1]) * chunk >= out.size:
        out[:] = np.nan
        return
    for sent, part in _pairs(values, chosen, out, chunk):
        part += np.float32(weight) * sent[: part.size]


def _pairs(values: F32, chosen: U32, whole: F32, chunk: int) -> Iterator[tuple[F32, F32]]:
    """Room for each chosen chunk, and the chunk."""
    for k, c in enumerate(chosen.tolist()):
        yield values[k * chunk : (k + 1) * chunk], whole[c * chunk : (c + 1) * chunk]


def _check_chunk(chunk: int) -> None:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")


def _check_chosen(
    values: F32, values_name: str, chosen: U32, whole: F32, whole_name: str, chunk: int
) -> None:
    _check_chunk(chunk)
    check_array("chosen", chosen, np.uint32)
    check_array(values_name, values, np.float32, (chosen.size * chunk,), writable=True)
    check_array(whole_name, whole, np.float32, writable=True)
