"""Many vectors in one call on a GPU; see :mod:`compressa.kernels.multi_tensor`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from .._arrays import U8, block_count
from ..blockwise import STATISTICS
from ..multi_tensor import (
    BlockForm,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
)
from ..onebit import SignForm
from ..philox import Noise
from ._arguments import Arguments, feedback, random, values
from ._device import CTA, Table, device, launch
from ._work import quantizer_for, team_for

MOST = 64  # vectors of a launch: parameters of a kernel have 4 KB
MOST_PAYLOADS = 8  # of a launch; as in _sums.cuh
_BOOLS = np.bool_(False), np.bool_(True)
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
"""``struct Table`` of multi_tensor.cu."""
_SUM_LAYOUT = np.dtype(
    [
        ("out", np.uint64, MOST),
        ("codes", np.int64, MOST),
        ("scales", np.int64, MOST),
        ("offsets", np.int64, MOST),
        ("total", np.int64, MOST),
        ("elems", np.int32, MOST),
        ("first_group", np.int32, MOST + 1),
        ("vectors", np.int32),
    ],
    align=True,
)
"""``struct SumTable``."""
_WORD = 0xFFFFFFFF


class _Launch(NamedTuple):
    """Some of the vectors, and how many groups of blocks they have."""

    table: Table
    groups: int


class _Prepared(NamedTuple):
    """What does not change from call to call.

    Attributes:
        launches: All vectors.
        kernel: The kernel's name.
        form: Arguments that tell of the form.
        at_random: Whether it rounds so.
    """

    launches: Sequence[_Launch]
    kernel: str
    form: Arguments
    at_random: bool = False


def multi_tensor_quantize(
    batch: BlockwiseVectors, *, noise: Noise | None = None, loss_scale: float = 1.0
) -> None:
    if not batch.vectors:
        return
    if batch.prepared is None or batch.prepared.at_random != (noise is not None):
        batch.prepared = _prepared_to_quantize(batch, noise is not None)
    launches, kernel, form, _ = batch.prepared
    kind, factors = values(batch.vectors[0].x)[1], feedback(None, loss_scale)[1:]
    words = () if isinstance(batch.form, SignForm) else _random(noise)
    for table, groups in launches:
        launch(
            "multi_tensor",
            kernel,
            groups,
            CTA,
            table,
            kind,
            *factors,
            *form,
            *words,
        )


def multi_tensor_sum(batch: BlockwiseParts, payloads: Sequence[U8], *, weight: float = 1.0) -> None:
    _sum(batch, payloads, weight, alone=False, add=False)


def multi_tensor_dequantize(
    batch: BlockwiseParts, payload: U8, *, weight: float = 1.0, add: bool = False
) -> None:
    _sum(batch, [payload], weight, alone=not add, add=add)


def _sum(
    batch: BlockwiseParts, payloads: Sequence[U8], weight: float, *, alone: bool, add: bool
) -> None:
    """Sum payloads, as many at a time as a launch takes; what is rounded is so in the last."""
    if not batch.parts:
        return
    if batch.prepared is None:
        batch.prepared = _prepared_to_sum(batch)
    launches, kernel, form, _ = batch.prepared
    kind, factor, totals = values(batch.parts[0].out)[1], np.float32(weight), None
    if len(payloads) > MOST_PAYLOADS and batch.parts[0].out.dtype != np.float32:
        totals = device().empty(sum(part.out.size for part in batch.parts), np.float32)
    for first in range(0, max(len(payloads), 1), MOST_PAYLOADS):
        some = payloads[first : first + MOST_PAYLOADS]
        last = first + MOST_PAYLOADS >= len(payloads)
        for table, groups in launches:
            launch(
                "multi_tensor",
                kernel,
                groups,
                CTA,
                table,
                *some,
                *[None] * (MOST_PAYLOADS - len(some)),
                totals,
                _BOOLS[alone],
                _BOOLS[add or first > 0],
                _BOOLS[last],
                kind,
                *form,
                factor,
            )


def _random(noise: Noise | None) -> Arguments:
    """Seed, stream and step; the rest is in the table."""
    return random(None if noise is None else Noise(*noise[:3], parameter=0))[:3]


def _bits(form: BlockForm) -> int:
    return 1 if isinstance(form, SignForm) else form.bits


def _prepared_to_quantize(batch: BlockwiseVectors, at_random: bool) -> _Prepared:
    form, lows = batch.form, range(0, len(batch.vectors), MOST)
    team, threads = quantizer_for(_bits(form), form.block, at_random=at_random)
    launches = [_launch(batch.vectors[low : low + MOST], form.block, threads) for low in lows]
    kernel = f"quantize_many{'_at_random' if at_random else ''}_{_bits(form)}_{team}"
    if isinstance(form, SignForm):
        return _Prepared(launches, kernel, (np.int32(form.block),))
    statistic = STATISTICS.index(form.statistic)
    numbers = (form.block, statistic, form.top, form.bottom, form.zero)
    arguments = (*map(np.int32, numbers), np.float64(form.clip))
    return _Prepared(launches, kernel, arguments, at_random)


def _prepared_to_sum(batch: BlockwiseParts) -> _Prepared:
    form, lows = batch.form, range(0, len(batch.parts), MOST)
    totals = list(accumulate((part.out.size for part in batch.parts), initial=0))
    team, threads = team_for(form.block)
    launches = [
        _sum_launch(batch.parts[low : low + MOST], totals[low : low + MOST], form.block, threads)
        for low in lows
    ]
    numbers: Arguments = (np.int32(form.block),)
    if not isinstance(form, SignForm):
        numbers = (*numbers, np.int32(form.zero), _BOOLS[form.statistic == "range"])
    return _Prepared(launches, f"sum_many_{_bits(form)}_by_{team}", numbers)


def _first_groups(sizes: Sequence[int], block: int, threads: int) -> list[int]:
    """The groups of blocks before each vector, and all; a group is what a CTA takes at once."""
    at_once = CTA // threads  # it never mixes vectors
    return list(accumulate((-(-block_count(n, block) // at_once) for n in sizes), initial=0))


def _sum_launch(
    parts: Sequence[BlockwisePart], totals: Sequence[int], block: int, threads: int
) -> _Launch:
    sizes = [part.out.size for part in parts]
    first_group = _first_groups(sizes, block, threads)
    numbers: dict[str, Sequence[int] | int] = {
        "codes": [part.codes for part in parts],
        "scales": [part.scales for part in parts],
        "offsets": [part.offsets or 0 for part in parts],
        "total": totals,
        "elems": sizes,
        "first_group": first_group,
        "vectors": len(parts),
    }
    return _Launch(
        Table(_SUM_LAYOUT, {"out": [part.out for part in parts]}, numbers), first_group[-1]
    )


def _launch(vectors: Sequence[BlockwiseVector], block: int, threads: int) -> _Launch:
    first_group = _first_groups([vector.x.size for vector in vectors], block, threads)
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
