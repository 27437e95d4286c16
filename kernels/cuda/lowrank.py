"""Low-rank arithmetic on a GPU; see :mod:`compressa.kernels.lowrank`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._arrays import F32, U32
from ..lowrank import BLOCK, PANEL, Factors
from ..philox import Noise
from ._arguments import feedback, i32, i64, random
from ._device import CTA, WARP, device, launch
from ._work import threads_for

_ALONE = 24 * BLOCK  # products that one block of threads sums up sooner than six launches begin
_TIMES = np.False_, np.True_  # that rows are made orthonormal, and whether again
_VECTORS = (1, 2, 4, 8)  # that kernels multiply at a time
_WIDE_THREADS = 512  # of a processor: so many must have work before each takes 16 bytes at a time
_TILE = {True: 4 * 4, False: 4}  # elements of a product that a thread makes, wide or narrow


class _Pieces(NamedTuple):
    """How a sum of products is cut.

    Attributes:
        kernel: "left" or "right".
        parts: Sums that are added up at the end.
        teams: How many work side by side on one group of vectors; wide ones, and narrow ones.
        threads: Of a team.
    """

    kernel: str
    parts: int
    teams: tuple[int, int]
    threads: int


def orthonormalize(p: F32) -> None:
    approx_rank, n = p.shape
    if not p.size:
        return
    pairs = approx_rank * (approx_rank + 1) // 2
    units = pairs * -(-n // BLOCK)
    memory = device().empty(approx_rank + 2 * pairs + units, np.float64)  # as in _orthonormal.cuh
    shape = i64(n), i32(approx_rank)
    if pairs * n <= _ALONE:
        launch("lowrank", "orthonormalize", 1, CTA, p, memory, *shape)
        return
    for again in _TIMES:
        launch("lowrank", "multiply", -(-units // 2), WARP, p, memory, *shape)
        launch("lowrank", "find", 1, CTA, memory, *shape, again)
        launch("lowrank", "combine", *threads_for(n, 1), p, memory, *shape)


def judge_rows(factor: F32, verdicts: U32) -> None:
    rows, columns = factor.shape
    launch("lowrank", "judge_rows", rows, CTA, factor, verdicts, i64(columns), i32(rows))


def low_rank_product(p: F32, q: F32, out: F32, verdicts: U32 | None = None) -> None:
    launch("lowrank", "low_rank_product", *_tiles(out), p, q, out, *_sizes(out, p), verdicts)


def left_factor(
    x: F32, q: F32, p: F32, *, residual: F32 | None = None, loss_scale: float = 1.0
) -> None:
    rows, columns = x.shape
    blocks = -(-columns // BLOCK)
    teams = blocks * -(-rows // 16), blocks * -(-rows // 2)
    _multiply(_Pieces("left", blocks, teams, WARP), x, q, p, residual, loss_scale)


def right_factor(
    x: F32, p: F32, q: F32, *, residual: F32 | None = None, loss_scale: float = 1.0
) -> None:
    rows, columns = x.shape
    panels = -(-rows // PANEL)
    teams = panels * -(-columns // (4 * CTA)), panels * -(-columns // CTA)
    _multiply(_Pieces("right", panels, teams, CTA), x, p, q, residual, loss_scale)


def split_low_rank(
    m: F32,
    p: F32,
    q: F32,
    residual: F32,
    loss_scale: float = 1.0,
    *,
    held: bool = False,
    verdicts: U32 | None = None,
    out: Factors | None = None,
) -> None:
    given = m, p, q, residual, *_sizes(m, p), verdicts
    back = feedback(residual, loss_scale)[2]
    launch("lowrank", "split_low_rank", *_tiles(m), *given, back, np.bool_(held))
    if out is not None and (out[0] is not p or out[1] is not q):
        low_rank_product(*out, m, verdicts)


def keep_directions(factor: F32, kept: F32, verdicts: U32, noise: Noise) -> None:
    rows, columns = factor.shape
    given = factor, kept, verdicts, i64(columns), i32(rows), *random(noise)
    launch("lowrank", "keep_directions", *threads_for(rows * -(-columns // 4) * 4, 4), *given)


def _sizes(matrix: F32, factor: F32) -> tuple[Any, ...]:
    """``i64 rows, i64 columns, int approx_rank``."""
    rows, columns = matrix.shape
    return i64(rows), i64(columns), i32(factor.shape[0])


def _tiles(matrix: F32) -> tuple[int, int]:
    """Teams, and threads of a team, for a product."""
    return threads_for(matrix.size, _TILE[matrix.shape[1] % 4 == 0])


def _multiply(
    pieces: _Pieces, x: F32, factor: F32, out: F32, residual: F32 | None, loss_scale: float
) -> None:
    """Sum up products of M and a factor's vectors, and set x = M."""
    approx_rank = factor.shape[0]
    vectors = next((count for count in _VECTORS if count >= approx_rank), _VECTORS[-1])
    wide = x.shape[1] % 4 == 0 and pieces.teams[0] * pieces.threads >= (
        _WIDE_THREADS * device().processors
    )
    name = f"{pieces.kernel}_{vectors}_{'wide' if wide else 'narrow'}"
    teams = pieces.teams[not wide]
    # One part is the sum itself.
    parts = out if pieces.parts == 1 else device().empty(pieces.parts * out.size, np.float32)

    def multiply(first: int, last: int, added: F32 | None) -> None:
        groups = -(-(last - first) // vectors)
        given = x, added, np.float32(loss_scale), factor, parts, *_sizes(x, factor)
        where = i32(first), i32(last)
        launch("lowrank", name, groups * teams, pieces.threads, *given, *where)

    if residual is None:
        multiply(0, approx_rank, None)
    else:
        multiply(0, min(vectors, approx_rank), residual)
        multiply(vectors, approx_rank, None)  # these find it added
    if pieces.parts != 1:
        sizes = i64(out.size), i64(pieces.parts)
        launch("lowrank", "add_up", *threads_for(out.size, 1), parts, out, *sizes)
