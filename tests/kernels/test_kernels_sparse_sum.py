"""The sum of two sparse vectors: that of the dense ones, by index, in the same bits everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from alike import alike, backends, odd, on_every_backend
from compressa.kernels import sum_sparse
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import FINITE, NONFINITE, poisoned, same_bits

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
Sparse = tuple[U32, F32]

SIZES = (0, 1, 2, 7, 31, 32, 33, 100, 257)
LARGER = (*SIZES, 1023, 1024, 1025, 5000)
RANGES = (1, 40, 300, 2**20, 2**32)


@st.composite
def sparse_vectors(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> tuple[Sparse, Sparse]:
    """Two vectors with increasing indices, many of them in both where the range is small."""
    n, random = draw(st.sampled_from(RANGES)), np.random.default_rng(draw(st.integers(0, 2**20)))
    return draw_one(draw, random, n, sizes), draw_one(draw, random, n, sizes)


def draw_one(
    draw: st.DrawFn, random: np.random.Generator, n: int, sizes: tuple[int, ...]
) -> Sparse:
    indices = np.unique(random.integers(0, n, draw(st.sampled_from(sizes)))).astype(np.uint32)
    values = random.standard_normal(indices.size).astype(np.float32)
    for value in draw(st.lists(st.sampled_from(FINITE + NONFINITE), max_size=3)):
        values[random.integers(0, max(values.size, 1)) : values.size][:1] = value
    return indices, values


def summed(function: Any, a: Sparse, b: Sparse) -> Sparse:
    size = a[0].size + b[0].size
    indices, values = poisoned(size, np.uint32), poisoned(size, np.float32)
    with np.errstate(all="ignore"):
        function(*a, *b, indices, values)
    return indices, values


def same(ours: Sparse, theirs: Sparse) -> bool:
    return all(same_bits(*pair) for pair in zip(ours, theirs, strict=True))


@on_every_backend
@given(sparse_vectors(sizes=LARGER))
def test_equals_reference(vectors: tuple[Sparse, Sparse]) -> None:
    reads = [array for vector in vectors for array in vector]
    alike("sparse_sum", lambda kernels: summed(kernels.sum_sparse, *vectors), reads=reads)


@on_every_backend
def test_the_order_of_threads_does_not_matter() -> None:
    random = np.random.default_rng(0)
    indices = [np.unique(random.integers(0, 30_000, 9000)).astype(np.uint32) for _ in range(2)]
    a, b = ((own, random.standard_normal(own.size).astype(np.float32)) for own in indices)
    alike("sparse_sum", lambda kernels: summed(kernels.sum_sparse, a, b), orders=range(4))


@given(sparse_vectors())
def test_it_is_the_sum_of_the_dense_vectors(vectors: tuple[Sparse, Sparse]) -> None:
    """Told by a dictionary, which neither the kernels nor their reference use."""
    due: dict[int, np.float32] = {}
    with np.errstate(all="ignore"):
        for indices, values in vectors:
            for index, value in zip(indices.tolist(), values, strict=True):
                due[index] = due[index] + value if index in due else value
    found = summed(sum_sparse, *vectors)
    assert found[0][: len(due)].tolist() == sorted(due)
    expected = np.array([due[index] for index in sorted(due)], np.float32)
    assert same_bits(found[1][: len(due)], expected)
    assert not found[0][len(due) :].any()
    assert not found[1][len(due) :].any()


@given(sparse_vectors())
def test_the_order_of_the_two_does_not_matter(vectors: tuple[Sparse, Sparse]) -> None:
    assert same(summed(sum_sparse, *vectors), summed(sum_sparse, *vectors[::-1]))


@on_every_backend
@pytest.mark.parametrize(("most", "count"), [(60, 50), (3, 2000), (2000, 2000), (2**32, 2000)])
def test_indices_in_disorder_write_nothing_beside_the_outputs(most: int, count: int) -> None:
    random, values = np.random.default_rng(3), np.ones(count, np.float32)

    for _ in range(50 if count == 50 else 1):
        a, b = (random.integers(0, most, count).astype(np.uint32) for _ in range(2))
        for _, kernels, context in backends("sparse_sum"):
            outputs = [odd(poisoned(2 * count, dtype), 10) for dtype in (np.uint32, np.float32)]
            with context:
                kernels.sum_sparse(a, values, b, values, *(out for _, out in outputs))
            for whole, _ in outputs:
                assert same_bits(np.delete(whole, slice(10, -10)), poisoned(20, whole.dtype))


@pytest.mark.parametrize("wrong", range(6))
def test_arrays_of_another_size_are_refused(wrong: int) -> None:
    arrays: list[Any] = [np.zeros(3, dtype) for dtype in (np.uint32, np.float32)] * 2
    arrays += [np.zeros(6, dtype) for dtype in (np.uint32, np.float32)]
    sum_sparse(*arrays)
    arrays[wrong] = arrays[wrong][:-1]
    with pytest.raises(ValueError, match="must have shape"):
        sum_sparse(*arrays)
