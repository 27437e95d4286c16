"""The CUDA kernels of sparse sums, run on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels.cuda import sparse_sum
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import sparse_sum as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from kernel_cases import poisoned, same_bits
from test_kernels_sparse_sum import SIZES, Sparse, same, sparse_vectors, summed

pytestmark = on_emulated_cuda

LARGER = (*SIZES, 1023, 1024, 1025, 5000)


@settings(max_examples=60)
@given(sparse_vectors(sizes=LARGER))
def test_equals_reference(vectors: tuple[Sparse, Sparse]) -> None:
    ours, due = (summed(m.sum_sparse, *vectors) for m in (sparse_sum, reference))
    assert same(ours, due)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    random = np.random.default_rng(seed)
    indices = [np.unique(random.integers(0, 30_000, 9000)).astype(np.uint32) for _ in range(2)]
    a, b = ((own, random.standard_normal(own.size).astype(np.float32)) for own in indices)
    with running_on(Emulated(seed)):
        assert same(summed(sparse_sum.sum_sparse, a, b), summed(reference.sum_sparse, a, b))


def test_indices_in_disorder_write_nothing_beside_the_outputs() -> None:
    random, inner = np.random.default_rng(3), slice(10, 4010)
    whole = poisoned(4020, np.uint32), poisoned(4020, np.float32)
    before = [array.copy() for array in whole]
    values = np.ones(2000, np.float32)
    for most in (3, 2000, 2**32):
        a, b = (random.integers(0, most, 2000).astype(np.uint32) for _ in range(2))
        sparse_sum.sum_sparse(a, values, b, values, whole[0][inner], whole[1][inner])
    for array, old in zip(whole, before, strict=True):
        assert same_bits(array[:10], old[:10])
        assert same_bits(array[4010:], old[4010:])
