"""Cosine transforms of tiles on a GPU; see :mod:`compressa.kernels.dct`.

The bits are the reference's: the matrix is made on the GPU, by the written steps. `are_positions`
waits for the GPU at its end if it must.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arrays import F32, U8, Gradient, block_count
from ..dct import ChunkForm, Coefficients
from . import _arguments
from ._arguments import i64
from ._device import CTA, launch
from ._later import find_fault

_VECTOR_ELEMS = 1024  # that a block of threads takes at once; of a matrix, a tile


def _form(form: ChunkForm) -> tuple[Any, ...]:
    """``int kept, int width, int position_bytes``."""
    return tuple(np.int32(number) for number in (form.kept, form.width, form.position_bytes))


def _cut(elems: int, form: ChunkForm) -> tuple[str, int, tuple[np.int64, ...]]:
    """Return the source, how many blocks of threads, and ``i64 columns, i64 tiles`` of a matrix."""
    if not form.columns:
        return "dct", block_count(elems, _VECTOR_ELEMS), ()
    tiles = form.tiles(elems)
    return "dct_tiles", tiles, (i64(form.columns), i64(tiles))


def keep_coefficients(
    x: Gradient,
    values: Coefficients,
    positions: U8,
    *,
    form: ChunkForm,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    source, teams, matrix = _cut(x.size, form)
    launch(
        source,
        f"keep_{form.chunk}",
        teams,
        CTA,
        *_arguments.values(x),
        *_arguments.feedback(residual, loss_scale),
        *_arguments.values(values),
        positions,
        i64(x.size),
        *matrix,
        *_form(form),
    )


def are_positions(positions: U8, *, form: ChunkForm) -> bool:
    chunks = positions.size // form.position_bytes
    given = positions, i64(chunks), *_form(form)
    return not find_fault("dct", "find_wrong_positions", block_count(chunks, CTA), CTA, *given)


def add_coefficients(
    values: Coefficients,
    positions: U8,
    out: F32,
    *,
    form: ChunkForm,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    source, teams, matrix = _cut(out.size, form)
    launch(
        source,
        f"add_{form.chunk}",
        teams,
        CTA,
        *_arguments.values(values),
        positions,
        out,
        i64(out.size),
        *matrix,
        *_form(form),
        np.float32(weight),
        np.bool_(add),
    )
