"""The sum of two sparse vectors in NumPy; see :mod:`compressa.kernels.sparse_sum`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32


def sum_sparse(
    indices_a: U32, values_a: F32, indices_b: U32, values_b: F32, indices: U32, values: F32
) -> None:
    """See :func:`compressa.kernels.sparse_sum.sum_sparse`."""
    union = np.union1d(indices_a, indices_b)
    in_a, in_b = np.isin(union, indices_a), np.isin(union, indices_b)
    indices[:], values[:] = 0, 0
    indices[: union.size] = union
    values[: union.size][in_b] = values_b
    values[: union.size][in_a & ~in_b] = values_a[~np.isin(indices_a, indices_b)]
    both_a, both_b = np.isin(indices_a, indices_b), np.isin(indices_b, indices_a)
    values[: union.size][in_a & in_b] = values_a[both_a] + values_b[both_b]
