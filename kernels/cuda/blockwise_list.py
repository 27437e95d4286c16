"""Block-wise quantisation of a list on a GPU; see :mod:`compressa.kernels.blockwise_list`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from .._arrays import block_count
from ..blockwise import STATISTICS
from ..blockwise_list import BlockwiseList, BlockwiseVector
from ..philox import Noise
from ._arguments import feedback, random, values
from ._device import CTA, Table, launch
from ._work import team_for

MOST = 64  # vectors of a launch: parameters of a kernel have 4 KB
_LAYOUT = np.dtype(
    [
        ("x", np.uint64, MOST),
        ("residual", np.uint64, MOST),
        ("codes", np.uint64, MOST),
        ("scales", np.uint64, MOST),
        ("offsets", np.uint64, MOST),
        ("start", np.int64, MOST),
        ("elems", np.int32, MOST),
        ("parameter", np.uint32, MOST),
        ("first_group", np.int32, MOST + 1),
        ("vectors", np.int32),
    ],
    align=True,
)
"""``struct Table`` of blockwise_list.cu."""
_WORD = 0xFFFFFFFF


class _Launch(NamedTuple):
    """Some of the vectors, and how many groups of blocks they have."""

    table: Table
    groups: int


def quantize_blockwise_list(
    batch: BlockwiseList, *, noise: Noise | None = None, scale: float = 1.0
) -> None:
    """See :func:`compressa.kernels.blockwise_list.quantize_blockwise_list`."""
    form = batch.form
    if batch.prepared is None:
        batch.prepared = _launches(batch)
    rounding = "" if noise is None else "at_random_"
    numbers = form.block, STATISTICS.index(form.statistic), form.top, form.bottom, form.zero
    for table, groups in batch.prepared:
        launch(
            "blockwise_list",
            f"quantize_list_{form.bits}_{rounding}by_{team_for(form.block)[0]}",
            groups,
            CTA,
            table,
            *values(batch.vectors[0].x)[1:],
            *feedback(None, scale)[1:],
            *(np.int32(number) for number in numbers),
            np.float64(form.clip),
            *random(noise)[:3],
        )


def _launches(batch: BlockwiseList) -> list[_Launch]:
    lows = range(0, len(batch.vectors), MOST)
    return [_launch(batch.vectors[low : low + MOST], batch.form.block) for low in lows]


def _launch(vectors: Sequence[BlockwiseVector], block: int) -> _Launch:
    at_once = CTA // team_for(block)[1]  # blocks that a CTA takes; it never mixes vectors
    groups = [-(-block_count(vector.x.size, block) // at_once) for vector in vectors]
    first_group = list(accumulate(groups, initial=0))
    arrays: dict[str, Sequence[Any]] = {
        "x": [vector.x for vector in vectors],
        "residual": [vector.residual for vector in vectors],
        "codes": [vector.codes for vector in vectors],
        "scales": [vector.scales for vector in vectors],
        "offsets": [vector.offsets for vector in vectors],
    }
    numbers: dict[str, Sequence[int] | int] = {
        "start": [vector.start for vector in vectors],
        "elems": [vector.x.size for vector in vectors],
        "parameter": [vector.parameter & _WORD for vector in vectors],
        "first_group": first_group,
        "vectors": len(vectors),
    }
    return _Launch(Table(_LAYOUT, arrays, numbers), first_group[-1])
