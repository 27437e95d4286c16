"""Lists of vectors are chosen from, packed and added up as vectors are one by one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from compressa.kernels import reference
from compressa.kernels.cpu._listing import LEAST_PIECE
from compressa.kernels.index_formats import INDEX_FORMATS, index_bytes, smallest_format
from compressa.kernels.multi_tensor_sparse import (
    SparseVector,
    SparseVectors,
    check_sparse,
    multi_tensor_scatter,
    multi_tensor_top_k,
)
from compressa.kernels.sparse_parts import SparsePart, SparseParts
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    KINDS,
    SCALES,
    as_kind,
    gradients,
    poisoned,
    residual_for,
    said_by,
    same_bits,
)

VALUES = (np.float32, np.float16, np.uint16)
DENSITIES = (0.001, 0.01, 0.3, 1.0)
forms = st.sampled_from((*INDEX_FORMATS, "auto"))
LONG = LEAST_PIECE + 3  # not taken by one call with the others


class Lists:
    """Vectors, a payload for what is chosen of them, and vectors that it decodes to."""

    def __init__(
        self,
        xs: list[Any],
        form: str = "auto",
        density: float = 0.01,
        dtype: Any = np.float32,
        residuals: list[F32 | None] | None = None,
    ) -> None:
        self.dtype, self.residuals, start = np.dtype(dtype), residuals or [None] * len(xs), 0
        self.layouts = []
        for x in xs:
            k = min(x.size, max(1, round(density * x.size)))
            own = smallest_format(k, x.size) if form == "auto" else form
            size = k * self.dtype.itemsize + index_bytes(own, k, x.size)
            self.layouts.append((x.size, k, own, start, size))
            start += -(-size // 8) * 8
        self.payload = np.zeros(start, np.uint8)
        self.outs = [np.full(x.size, 7, np.float32) for x in xs]
        vectors = [
            SparseVector(x, k, own, self.payload[first : first + size], residual)
            for x, residual, (_, k, own, first, size) in zip(
                xs, self.residuals, self.layouts, strict=True
            )
        ]
        self.vectors = SparseVectors(vectors, value_dtype=dtype)
        self.parts = self.parts_of(self.outs)
        self.checked = self.parts_of([None] * len(xs))

    def parts_of(self, outs: Any) -> SparseParts:
        parts = [
            SparsePart(n, k, own, first, out)
            for out, (n, k, own, first, _) in zip(outs, self.layouts, strict=True)
        ]
        size = self.payload.size
        return SparseParts(parts, value_dtype=self.dtype, payload_bytes=size)

    def use(self, loss_scale: float = 1.0, weight: float = 0.3) -> list[Any]:
        """Call with all lists; return what was written."""
        multi_tensor_top_k(self.vectors, loss_scale=loss_scale)
        check_sparse(self.checked, self.payload)
        multi_tensor_scatter(self.parts, [self.payload] * 3, weight=weight)
        summed = [out.copy() for out in self.outs]
        multi_tensor_scatter(self.parts, [self.payload], weight=weight, add=True)
        return [self.payload, *self.residuals, *summed, *self.outs]


def on(specified: bool) -> AbstractContextManager[None]:
    return reference() if specified else nullcontext()


def assert_alike(xs: list[Any], seeds: list[int | None], loss_scale: float, **how: Any) -> None:
    """The kernels' bits are the reference's."""
    written = []
    for specified in (False, True):
        left = [
            residual_for(np.zeros(x.size, np.float32), s) for x, s in zip(xs, seeds, strict=True)
        ]
        with on(specified), np.errstate(all="ignore"):
            written.append(Lists(xs, residuals=left, **how).use(loss_scale))
    assert all(same_bits(*pair) for pair in zip(*written, strict=True) if pair[0] is not None)


@settings(max_examples=166)
@given(
    st.lists(st.tuples(gradients(), st.integers(0, 99)), max_size=7),
    st.booleans(),
    forms,
    st.sampled_from(DENSITIES),
    st.sampled_from(SCALES),
)
def test_equals_reference(
    drawn: list[tuple[F32, int]], kept: bool, form: str, density: float, loss_scale: float
) -> None:
    xs, seeds = [x for x, _ in drawn], [seed if kept else None for _, seed in drawn]
    assert_alike(xs, list(seeds), loss_scale, form=form, density=density)


@pytest.mark.parametrize(
    ("kind", "dtype"), [*product(KINDS, VALUES[:1]), *product(KINDS[:1], VALUES)]
)
def test_all_dtypes_of_gradients_and_of_values(kind: str, dtype: Any) -> None:
    random = np.random.default_rng(3)
    sizes = (0, 1, 9, 1000, LEAST_PIECE, LONG)
    xs = [as_kind(random.standard_normal(n).astype(np.float32), kind) for n in sizes]
    xs[3][5] = np.float32(60_000) if kind == "float32" else xs[3][5]  # overflows with the scale
    for form, density in product(INDEX_FORMATS, DENSITIES[1:]):
        assert_alike(xs, [1] * len(xs), 1024.0, form=form, density=density, dtype=dtype)


def test_of_what_is_not_finite_a_nan_is_sent() -> None:
    xs = [np.array([1, np.inf, 2], np.float32), np.array([3, 4], np.float32)]
    lists = Lists(xs, density=0.5)
    lists.use()
    assert np.isnan(lists.outs[0]).tolist() == [True, False, False]
    assert lists.outs[1].tolist() == pytest.approx([0.0, 4 * 1.2])


@settings(max_examples=166)
@given(st.data(), forms, st.sampled_from(DENSITIES), st.integers(0, 2**32 - 1))
def test_hostile_payloads_are_refused_as_the_reference_does(
    data: st.DataObject, form: str, density: float, seed: int
) -> None:
    """And nothing beyond the vectors is written."""
    random = np.random.default_rng(seed)
    sizes = data.draw(st.lists(st.sampled_from((1, 7, 8, 64, 200)), min_size=1, max_size=4))
    xs = [random.standard_normal(n).astype(np.float32) for n in sizes]
    lists = Lists(xs, form, density)
    multi_tensor_top_k(lists.vectors)
    memory = poisoned(sum(sizes) + 8 * len(sizes) + 8, np.float32)
    ends = np.cumsum([8, *(n + 8 for n in sizes)]).tolist()
    parts = lists.parts_of([memory[low : high - 8] for low, high in pairwise(ends)])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, lists.payload.size - 1))
        lists.payload[at] = data.draw(st.integers(0, 255))
    said: list[str] = []
    for specified in (False, True):
        # A changed byte may make a signalling NaN, of which NumPy warns.
        with on(specified), np.errstate(all="ignore"):
            checked, there = lists.parts_of([None] * len(xs)), lists.parts_of(lists.outs)
            given_to = there if specified else parts
            said += said_by(
                partial(check_sparse, checked, lists.payload),
                partial(multi_tensor_scatter, given_to, [lists.payload]),
            )
    assert len(said) == 4
    assert len(set(said)) == 1
    for begin in (0, *(end - 8 for end in ends[1:])):
        assert same_bits(memory[begin : begin + 8], poisoned(8, np.float32))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("specified", [False, True])
def test_moved_lists_give_the_bits_of_new_ones(specified: bool, used: bool) -> None:
    random = np.random.default_rng(1)
    first, then = (
        [random.standard_normal(n).astype(np.float32) for n in (0, 5, LONG, 1000)] for _ in "ab"
    )
    with on(specified):
        moved, made = Lists(first), Lists(then)
        if used:
            moved.use()
        outs = [poisoned(x.size, np.float32) for x in then]
        moved.vectors.move(np.array([x.ctypes.data for x in then]))
        moved.parts.move(np.array([out.ctypes.data for out in outs]))
        moved.outs = outs
        found, due = moved.use(), made.use()
    assert all(same_bits(*pair) for pair in zip(found, due, strict=True) if pair[0] is not None)


def test_what_can_not_be_is_refused() -> None:
    x, out = np.zeros(8, np.float32), np.zeros(8, np.float32)
    size = 4 + index_bytes("bits", 1, 8)
    room = np.zeros(size, np.uint8)
    right = SparseVector(x, 1, "bits", room)
    with pytest.raises(ValueError, match="1 to 8 can be kept, not 0"):
        SparseVectors([right._replace(kept=0)], value_dtype=np.float32)
    with pytest.raises(ValueError, match="payload must have shape"):
        SparseVectors([right._replace(kept=2)], value_dtype=np.float32)
    half = right._replace(x=x.astype(np.float16))
    with pytest.raises(TypeError, match="one dtype"):
        SparseVectors([right, half], value_dtype=np.float32)
    with pytest.raises(ValueError, match="loss_scale"):
        multi_tensor_top_k(SparseVectors([right], value_dtype=np.float32), loss_scale=0.0)
    part = SparsePart(8, 1, "bits", 0, out)
    with pytest.raises(ValueError, match="multiple of 4"):
        SparseParts([part._replace(start=2)], value_dtype=np.float32, payload_bytes=99)
    with pytest.raises(ValueError, match="do not lie in"):
        SparseParts([part._replace(start=4)], value_dtype=np.float32, payload_bytes=size)
    with pytest.raises(ValueError, match="out must have shape"):
        SparseParts([part._replace(elems=9)], value_dtype=np.float32, payload_bytes=99)
    parts = SparseParts([part], value_dtype=np.float32, payload_bytes=size)
    with pytest.raises(ValueError, match=f"has {size + 1} bytes, not {size}"):
        multi_tensor_scatter(parts, [np.zeros(size + 1, np.uint8)])
    only = SparseParts([part._replace(out=None)], value_dtype=np.float32, payload_bytes=size)
    with pytest.raises(ValueError, match="nothing to add to"):
        multi_tensor_scatter(only, [room])
