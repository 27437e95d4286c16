"""Top-k for NumPy arrays by radix selection; see :mod:`compressa.kernels.topk`.

Magnitudes order as the integers that their bits are. A histogram of the top 11 bits finds the
bucket that the k-th largest lies in. Everything from that bucket upwards is collected in one pass
that skips blocks with a smaller maximum, and the exact choice is made among those few. Where the
bucket holds too much (many equal or almost equal magnitudes), further passes resolve 10 bits more
each; once all 31 are known, only ties are left, and the lowest indices win.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, I64, U32
from ._feedback import effective, inverse, largest_bits, magnitude_bits, part
from ._jit import jit

_BITS = 31
_SHIFTS = 20, 10, 0
_NONFINITE = 0x7F800000 >> _SHIFTS[0]
_SKIP = 64  # elements per block of the collecting pass: at 1 % density half of them are skipped
_SLACK = 4096  # candidates that are never worth another pass over memory


@jit
def _buckets(
    x: F32,
    residual: F32 | None,
    scale: np.float32,
    known: np.uint32,
    known_shift: np.uint32,
    shift: np.uint32,
    mask: np.uint32,
    out: U32,
) -> None:
    """Each element's bucket; the one past the last where the bits above are not ``known``."""
    for i in range(x.size):
        bits = magnitude_bits(effective(x, residual, scale, i))
        bucket = np.uint32(np.uint32(bits >> shift) & mask)
        out[i] = bucket if np.uint32(bits >> known_shift) == known else np.uint32(mask + 1)


@jit
def _tally(buckets: U32, counts: I64) -> None:
    # Four rows, because an increment has to wait for the last one of the same counter.
    first, second, third, fourth = counts[0], counts[1], counts[2], counts[3]
    whole = buckets.size // 4 * 4
    for i in range(0, whole, 4):
        first[buckets[i]] += 1
        second[buckets[i + 1]] += 1
        third[buckets[i + 2]] += 1
        fourth[buckets[i + 3]] += 1
    for i in range(whole, buckets.size):
        first[buckets[i]] += 1


@jit
def _count(
    x: F32,
    residual: F32 | None,
    scale: np.float32,
    known: np.uint32,
    known_shift: np.uint32,
    shift: np.uint32,
    counts: I64,
) -> None:
    """Histogram of the bits from ``shift`` up to ``known_shift`` where those above are known."""
    buckets, mask = np.empty(_SKIP, np.uint32), np.uint32(counts.shape[1] - 2)
    for low in range(0, x.size, _SKIP):
        high = min(low + _SKIP, x.size)
        now, left, here = x[low:high], part(residual, low, high), buckets[: high - low]
        if known == 0 or largest_bits(now, left, scale) >> known_shift >= known:
            _buckets(now, left, scale, known, known_shift, shift, mask, here)
            _tally(here, counts)


@jit
def _descend(counts: I64, above: int, k: int) -> tuple[int, int]:
    """The bucket that holds the k-th largest, and how many lie above it."""
    bucket = counts.size - 1
    while bucket > 0 and above + counts[bucket] < k:
        above += counts[bucket]
        bucket -= 1
    return bucket, above


def _boundary(
    x: F32, residual: F32 | None, scale: np.float32, k: int, slack: int
) -> tuple[int, int, int, int]:
    """Where the k-th largest lies.

    Returns (prefix, shift, above, inside): ``above`` elements, fewer than k, have larger bits than
    ``prefix`` after a shift by ``shift``, and ``inside`` have equal ones, at most ``slack`` unless
    the shift is 0. The shift is -1 if some p is not finite.
    """
    prefix, known_shift, above, inside = 0, _BITS, 0, x.size
    for shift in _SHIFTS:
        rows = np.zeros((4, (1 << (known_shift - shift)) + 1), np.int64)
        bounds = np.uint32(prefix), np.uint32(known_shift), np.uint32(shift)
        _count(x, residual, scale, *bounds, rows)
        counts = rows.sum(axis=0)[:-1]
        if known_shift == _BITS and counts[_NONFINITE:].any():
            return 0, -1, 0, 0
        bucket, above = _descend(counts, above, k)
        prefix, inside = (prefix << (known_shift - shift)) | bucket, int(counts[bucket])
        known_shift = shift
        if inside <= slack:
            break
    return prefix, known_shift, above, inside


@jit
def _scan(
    x: F32,
    residual: F32 | None,
    scale: np.float32,
    first: int,
    prefix: int,
    shift: int,
    found: int,
    room: int,
    indices: U32,
    values: F32,
) -> tuple[int, int]:
    # No branch on the data: every element is written, and overwritten if it was not wanted.
    for i in range(x.size):
        p = effective(x, residual, scale, i)
        order = np.int64(magnitude_bits(p)) >> shift
        indices[found] = np.uint32(first + i)
        values[found] = p
        found += int(order > prefix) | (int(order == prefix) & int(room > 0))
        room -= int(order == prefix)
    return found, room


@jit
def _keep(x: F32, residual: F32 | None, scale: np.float32, back: np.float32) -> None:
    if residual is not None:
        for i in range(x.size):
            residual[i] = effective(x, residual, scale, i) * back


@jit
def _collect(
    x: F32,
    residual: F32 | None,
    scale: np.float32,
    back: np.float32,
    prefix: int,
    shift: int,
    room: int,
    indices: U32,
    values: F32,
) -> None:
    """List what lies above the boundary and the first ``room`` on it; all of p stays behind."""
    found = 0
    for low in range(0, x.size, _SKIP):
        high = min(low + _SKIP, x.size)
        now, left = x[low:high], part(residual, low, high)
        if np.int64(largest_bits(now, left, scale)) >> shift >= prefix:
            found, room = _scan(now, left, scale, low, prefix, shift, found, room, indices, values)
        _keep(now, left, scale, back)


@jit
def _finish(
    chosen: U32, candidates: U32, sent: F32, indices: U32, values: F32, residual: F32 | None
) -> None:
    """Turn the chosen candidates into the result; they leave nothing behind."""
    for i in range(indices.size):
        indices[i] = candidates[chosen[i]]
        values[i] = sent[i]
        if residual is not None:
            residual[indices[i]] = np.float32(0)


@jit
def _scatter_add(indices: U32, values: F32, out: F32, weight: np.float32) -> None:
    for i in range(indices.size):
        out[indices[i]] += weight * values[i]


@jit
def _return_unsent(residual: F32, indices: U32, exact: F32, sent: F32, back: np.float32) -> None:
    for i in range(indices.size):
        if np.isfinite(exact[i]):
            arrived = sent[i] if np.isfinite(sent[i]) else np.float32(0)
            residual[indices[i]] = (exact[i] - arrived) * back


def select_top_k(
    x: F32,
    k: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.topk.select_top_k`."""
    one, factor, back = np.float32(1), np.float32(scale), inverse(scale)
    prefix, shift, above, inside = _boundary(x, residual, factor, k, max(k, _SLACK))
    if shift < 0:
        indices[:] = np.arange(k)
        values[:] = np.nan
        return
    room = inside if shift else k - above
    candidates, their_p = _spare(above + room)
    _collect(x, residual, factor, back, prefix, shift, room, candidates, their_p)
    few = their_p[:-1]
    prefix, shift, above, _ = _boundary(few, None, one, k, 0)
    chosen, sent = _spare(k)
    _collect(few, None, one, one, prefix, shift, k - above, chosen, sent)
    _finish(chosen, candidates, sent, indices, values, residual)


def _spare(size_elems: int) -> tuple[U32, F32]:
    """Room for indices and values, and one more of each, which ``_scan`` may write to."""
    return np.empty(size_elems + 1, np.uint32), np.empty(size_elems + 1, np.float32)


def scatter_add(indices: U32, values: F32, out: F32, *, weight: float = 1.0) -> None:
    """See :func:`compressa.kernels.topk.scatter_add`."""
    _scatter_add(indices, values, out, np.float32(weight))


def return_unsent(
    residual: F32, indices: U32, exact: F32, sent: F32, *, scale: float = 1.0
) -> None:
    """See :func:`compressa.kernels.topk.return_unsent`."""
    _return_unsent(residual, indices, exact, sent, inverse(scale))
