"""Payloads that say how many values they hold are checked and added up as the reference does."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compressa.kernels import reference
from compressa.kernels.cpu import _sparse_rows as rows_of
from compressa.kernels.index_formats import (
    INDEX_FORMATS,
    index_bytes,
    pack_indices,
    smallest_format,
)
from compressa.kernels.multi_tensor_sparse import check_sparse, multi_tensor_scatter
from compressa.kernels.sparse_parts import CountedPart, CountedParts
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, poisoned, said_by, same_bits

FIRST = 24
U8 = npt.NDArray[np.uint8]
forms = st.sampled_from((*INDEX_FORMATS, "auto"))
dtypes = st.sampled_from((np.float32, np.float16, np.uint16))
lists = st.lists(
    st.sampled_from((0, 1, 7, 8, 64, 200, 3000)).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(min(n, 1), n))
    ),
    min_size=1,
    max_size=5,
)


def payload_of(sizes: list[tuple[int, int]], form: str, dtype: Any, seed: int) -> U8:
    """Say of vectors some of their elements, as many as may be, or fewer."""
    random, payload = np.random.default_rng(seed), bytearray(FIRST)
    for n, most in sizes:
        k = int(random.choice((0, most, random.integers(0, most + 1))))
        own = smallest_format(k, n) if form == "auto" else form
        packed = np.zeros(index_bytes(own, k, n), np.uint8)
        indices = np.sort(random.choice(n, k, replace=False)).astype(np.uint32)
        pack_indices(indices, n, own, packed)
        values = random.integers(0, 100, k).astype(dtype).tobytes()
        body = struct.pack("<I", k) + values + packed.tobytes()
        payload += struct.pack("<Q", len(body)) + body + bytes(-len(body) % 8)
    return np.frombuffer(payload, np.uint8)


def parts_of(sizes: list[tuple[int, int]], outs: Any, form: str, dtype: Any) -> CountedParts:
    parts = [CountedPart(n, most, form, out) for (n, most), out in zip(sizes, outs, strict=True)]
    return CountedParts(parts, value_dtype=dtype, first=FIRST)


def use(sizes: list[tuple[int, int]], payloads: list[U8], form: str, dtype: Any) -> list[F32]:
    """Call with all; return what was written."""
    outs = [poisoned(n, np.float32) for n, _ in sizes]
    checked = parts_of(sizes, [None] * len(sizes), form, dtype)
    for payload in payloads:
        check_sparse(checked, payload)
    parts = parts_of(sizes, outs, form, dtype)
    multi_tensor_scatter(parts, payloads, weight=0.3)
    summed = [out.copy() for out in outs]
    multi_tensor_scatter(parts, payloads[:1], weight=0.7, add=True)
    return [*summed, *outs]


@settings(max_examples=166)
@given(lists, forms, dtypes, st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_equals_reference(
    sizes: list[tuple[int, int]], form: str, dtype: Any, ranks: int, seed: int
) -> None:
    payloads = [payload_of(sizes, form, dtype, seed + rank) for rank in range(ranks)]
    found = use(sizes, payloads, form, dtype)
    with reference():
        due = use(sizes, payloads, form, dtype)
    assert all(same_bits(*pair) for pair in zip(found, due, strict=True))


@settings(max_examples=500)
@given(lists, forms, dtypes, st.integers(0, 2**32 - 1), st.data())
def test_hostile_payloads_are_refused_as_the_reference_does(
    sizes: list[tuple[int, int]], form: str, dtype: Any, seed: int, data: st.DataObject
) -> None:
    """And nothing beyond the vectors is written."""
    payload = payload_of(sizes, form, dtype, seed).copy()
    numbers = st.sampled_from((0, 1, 4, 8, 12, 0x7F, 0x80, 0xFF))
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(FIRST, payload.size - 1))] = data.draw(numbers)
    if data.draw(st.booleans()):
        payload = np.resize(payload, data.draw(st.integers(0, payload.size + 16)))
    memory = poisoned(sum(n for n, _ in sizes) + 8 * len(sizes) + 8, np.float32)
    ends = np.cumsum([8, *(n + 8 for n, _ in sizes)]).tolist()
    mine = [memory[low : high - 8] for low, high in pairwise(ends)]
    said: list[str] = []
    for specified in (False, True):
        outs = [np.empty(n, np.float32) for n, _ in sizes] if specified else mine
        # A changed byte may make a signalling NaN, of which NumPy warns.
        with reference() if specified else nullcontext(), np.errstate(all="ignore"):
            checked = parts_of(sizes, [None] * len(sizes), form, dtype)
            said += said_by(
                partial(check_sparse, checked, payload),
                partial(multi_tensor_scatter, parts_of(sizes, outs, form, dtype), [payload]),
            )
    assert len(said) == 4
    assert len(set(said)) == 1
    for begin in (0, *(end - 8 for end in ends[1:])):
        assert same_bits(memory[begin : begin + 8], poisoned(8, np.float32))


@pytest.mark.parametrize("specified", [False, True])
def test_the_sum_of_no_payloads_is_zero(specified: bool) -> None:
    outs = [poisoned(n, np.float32) for n in (0, 64, 3000)]
    sizes = [(out.size, out.size) for out in outs]
    with reference() if specified else nullcontext():
        multi_tensor_scatter(parts_of(sizes, outs, "auto", np.float32), [])
    assert not any(out.any() for out in outs)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.floats(0, 1)), max_size=50))
def test_indices_lie_where_formats_say(drawn: list[tuple[int, float]]) -> None:
    drawn += [(n, k / n) for n in range(1, 40) for k in range(n + 1)]
    kept = np.array([min(n, round(share * n)) for n, share in drawn], np.int64)
    for form in (*INDEX_FORMATS, "auto"):
        rows = rows_of.table([0] * len(drawn), [n for n, _ in drawn])
        starts, numbers = np.full(kept.size, 12), rows_of.numbers_of([form] * len(drawn))
        rows_of.lay_out_rows(rows, kept, starts, numbers, 2)
        for row, (n, _), k in zip(rows.tolist(), drawn, kept.tolist(), strict=True):
            own = smallest_format(k, n) if form == "auto" else form
            assert INDEX_FORMATS[row[rows_of.FORM]] == own
            assert row[rows_of.INDEX_BYTES] == index_bytes(own, k, n)
            assert row[rows_of.INDICES] == 12 + 2 * k


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("specified", [False, True])
def test_moved_parts_give_the_bits_of_new_ones(specified: bool, used: bool) -> None:
    sizes = [(0, 0), (64, 9), (3000, 700)]
    payload = payload_of(sizes, "auto", np.float32, 1)
    outs, then = ([poisoned(n, np.float32) for n, _ in sizes] for _ in "ab")
    with reference() if specified else nullcontext():
        parts = parts_of(sizes, outs, "auto", np.float32)
        if used:
            multi_tensor_scatter(parts, [payload])
        parts.move(np.array([out.ctypes.data for out in then]))
        multi_tensor_scatter(parts, [payload])
        multi_tensor_scatter(parts_of(sizes, outs, "auto", np.float32), [payload])
    assert all(same_bits(*pair) for pair in zip(outs, then, strict=True))


def test_what_can_not_be_is_refused() -> None:
    right = CountedPart(8, 3, "auto", np.zeros(8, np.float32))
    with pytest.raises(ValueError, match="1 to 8 can be kept, not 9"):
        CountedParts([right._replace(most=9)], value_dtype=np.float32, first=0)
    with pytest.raises(ValueError, match="no format 'runs'"):
        CountedParts([right._replace(indices="runs")], value_dtype=np.float32, first=0)
    with pytest.raises(ValueError, match="multiple of 4"):
        CountedParts([right], value_dtype=np.float32, first=2)
    with pytest.raises(ValueError, match="out must have shape"):
        CountedParts([right._replace(elems=9)], value_dtype=np.float32, first=0)
