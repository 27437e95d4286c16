"""Cosine transforms of chunks on a GPU; see :mod:`compressa.kernels.dct`.

The bits are the reference's: the matrix is made on the GPU, by the written steps. `are_places`
returns a bool, so it waits for the GPU at its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arrays import F32, U8, Gradient, block_count
from ..dct import ChunkForm
from . import _arguments
from ._device import CTA, launch
from ._work import ask

_TILE = 1024  # elements that a block of threads takes at once


def _form(form: ChunkForm) -> tuple[Any, ...]:
    """``int kept, int width, int place_bytes``."""
    return tuple(np.int32(number) for number in (form.kept, form.width, form.place_bytes))


def keep_coefficients(
    x: Gradient,
    values: F32,
    places: U8,
    *,
    form: ChunkForm,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.dct.keep_coefficients`."""
    launch(
        "dct",
        f"keep_{form.chunk}",
        block_count(x.size, _TILE),
        CTA,
        *_arguments.values(x),
        *_arguments.feedback(residual, scale),
        values,
        places,
        np.int64(x.size),
        *_form(form),
    )


def are_places(places: U8, *, form: ChunkForm) -> bool:
    """See :func:`compressa.kernels.dct.are_places`."""
    chunks = places.size // form.place_bytes
    given = places, np.int64(chunks), *_form(form)
    return not ask("dct", "find_wrong_places", block_count(chunks, CTA), CTA, *given)


def add_coefficients(
    values: F32,
    places: U8,
    out: F32,
    *,
    form: ChunkForm,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """See :func:`compressa.kernels.dct.add_coefficients`."""
    launch(
        "dct",
        f"add_{form.chunk}",
        block_count(out.size, _TILE),
        CTA,
        values,
        places,
        out,
        np.int64(out.size),
        *_form(form),
        np.float32(weight),
        np.bool_(add),
    )
