"""A list whose values lie elsewhere gives the bits of one that was made there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from compressa.kernels import (
    BlockwiseMeans,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
    Form,
    Noise,
    SignForm,
    array_at,
    average_vectors,
    block_count,
    multi_tensor_dequantize,
    multi_tensor_quantize,
    multi_tensor_sum,
    reference,
)
from compressa.kernels._arrays import F32, I64, U8
from compressa.kernels.cpu._stream import LEAST_ELEMS
from compressa.kernels.device_array import DeviceArray
from compressa.kernels.multi_tensor import BlockForm
from kernel_cases import poisoned, same_bits

FORMS: list[BlockForm] = [
    Form(bits=8, block=64),
    Form(bits=4, block=256, statistic="range"),
    SignForm(block=64),
]
SIZES = (0, 5, 1000, LEAST_ELEMS + 7, 64)  # the fourth is not taken by one call with the others
_FACTOR = 0.25


def aligned(size: int) -> int:
    return -(-size // 8) * 8


class Lists:
    """All three lists of some values, with a payload, residuals and what is kept of these."""

    def __init__(self, xs: list[F32], form: BlockForm) -> None:
        self.form = form
        heads = 2 if isinstance(form, Form) and form.statistic == "range" else 1
        self._heads = [[4 * block_count(x.size, form.block)] * heads for x in xs]
        sizes = [
            aligned(sum(own) + form.code_bytes(x.size))
            for own, x in zip(self._heads, xs, strict=True)
        ]
        *self._firsts, end = accumulate(sizes, initial=0)
        self.payload = np.zeros(end, np.uint8)
        self.residuals = [np.ones(x.size, np.float32) for x in xs]
        self.kept = [poisoned(x.size, np.float32) for x in xs]
        self.parts = self._parts(xs)
        self.vectors = self._vectors(xs)
        self.means = BlockwiseMeans(self._vectors(xs), self._parts(xs), self.kept)

    def _parts(self, xs: list[F32]) -> BlockwiseParts:
        parts = []
        for x, first, heads in zip(xs, self._firsts, self._heads, strict=True):
            scales, *offsets, codes = accumulate(heads, initial=first)
            parts.append(BlockwisePart(x, codes, scales, *offsets))
        return BlockwiseParts(parts, form=self.form, payload_bytes=self.payload.size)

    def _vectors(self, xs: list[F32]) -> BlockwiseVectors:
        vectors = []
        for i, (x, part) in enumerate(zip(xs, self._parts(xs).parts, strict=True)):
            codes, scales, offsets = part.arrays(self.payload, self.form)
            own = x, codes, scales, offsets, self.residuals[i]
            vectors.append(BlockwiseVector(*own, parameter=i, start=3 * i))
        return BlockwiseVectors(vectors, form=self.form)

    def move(self, addresses: I64) -> None:
        for batch in (self.vectors, self.parts, self.means):
            batch.move(addresses)

    def use(self, xs: list[F32], sent: U8) -> list[np.ndarray]:
        """Call with every list; return all that was written.

        Args:
            xs: Where the values lie now; given anew before each call.
            sent: A payload.
        """
        noise = None if isinstance(self.form, SignForm) else Noise(1, 2, 3, 0)
        calls: list[Callable[[], None]] = [
            lambda: multi_tensor_quantize(self.vectors, noise=noise, loss_scale=2.0),
            lambda: multi_tensor_sum(self.parts, [sent, sent], weight=_FACTOR),
            lambda: multi_tensor_dequantize(self.parts, sent, weight=_FACTOR, add=True),
            lambda: average_vectors(self.means, [sent], weight=0.5, noise=noise),
        ]
        written = []
        for seed, call in enumerate(calls):
            fill(xs, seed)
            call()
            arrays = [*xs, self.payload, *self.residuals, *self.kept]
            written += [array.copy() for array in arrays]
        return written


def fill(xs: list[F32], seed: int) -> None:
    random = np.random.default_rng(seed)
    for x in xs:
        x[:] = random.standard_normal(x.size)


def room() -> list[F32]:
    return [np.zeros(size, np.float32) for size in SIZES]


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("specified", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_moved_lists_give_the_bits_of_new_ones(
    form: BlockForm, specified: bool, used: bool
) -> None:
    """Whether or not they were called where the values lay first."""
    first, then, there = room(), room(), room()
    with reference() if specified else nullcontext():
        moved = Lists(first, form)
        made, other = Lists(there, form), Lists(room(), form)
        fill([vector.x for vector in other.vectors.vectors], 9)
        multi_tensor_quantize(other.vectors)
        sent = other.payload
        if used:
            moved.use(first, sent)
            made.use(there, sent)
        before = [x.copy() for x in first]
        moved.move(np.array([x.ctypes.data for x in then]))
        for kept in (moved, made):
            for e in kept.residuals:
                e[:] = 1
        found, specified_there = moved.use(then, sent), made.use(there, sent)
    assert all(same_bits(a, b) for a, b in zip(found, specified_there, strict=True))
    assert all(same_bits(a, b) for a, b in zip(first, before, strict=True))


def test_memory_at_an_address_is_shared() -> None:
    x = np.zeros(7, np.float32)
    array_at(x.ctypes.data, np.ones(7, np.float32))[3] = 5
    assert x[3] == 5
    assert array_at(0, np.ones(0, np.float32)).size == 0
    on_gpu: Any = DeviceArray(0x1000, 7, np.dtype(np.float32), owner=None)
    with pytest.raises(TypeError, match="on a CPU"):
        array_at(x.ctypes.data, on_gpu)
