"""The sum of two sparse vectors, in time that grows with their values and not with their length."""

from __future__ import annotations

import numpy as np

from ._arrays import F32, U32, check_array
from ._backends import backend


def sum_sparse(
    indices_a: U32, values_a: F32, indices_b: U32, values_b: F32, indices: U32, values: F32
) -> None:
    """Add two sparse vectors, each as increasing indices and the values there.

    The indices of either come out once, in increasing order: first those of the sum, with the value
    of one vector or, at an index of both, that of ``a`` plus that of ``b``; then as many pairs of
    index 0 and value 0 as there are indices of both, so that the sizes say nothing of the data, and
    no GPU is waited for.

    Example:
        >>> import numpy as np
        >>> a, b = np.array([1, 4], np.uint32), np.array([4, 9], np.uint32)
        >>> indices, values = np.empty(4, np.uint32), np.empty(4, np.float32)
        >>> sum_sparse(a, np.float32([1, 2]), b, np.float32([10, 20]), indices, values)
        >>> indices.tolist(), values.tolist()
        ([1, 4, 9, 0], [1.0, 12.0, 20.0, 0.0])

    Args:
        indices_a: uint32[k], increasing. Where they are not, or those of ``b`` are not, the outputs
            hold rubbish, and nothing else is written.
        values_a: float32[k].
        indices_b: uint32[m], increasing.
        values_b: float32[m].
        indices: uint32[k + m], overwritten; k + m is below 2**32.
        values: float32[k + m], overwritten.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("indices_a", indices_a, np.uint32)
    check_array("values_a", values_a, np.float32, (indices_a.size,))
    check_array("indices_b", indices_b, np.uint32)
    check_array("values_b", values_b, np.float32, (indices_b.size,))
    size = indices_a.size + indices_b.size
    check_array("indices", indices, np.uint32, (size,), writable=True)
    check_array("values", values, np.float32, (size,), writable=True)
    arrays = indices_a, values_a, indices_b, values_b, indices, values
    if kernel := backend("sparse_sum", *arrays):
        kernel.sum_sparse(*arrays)
        return
    union = np.union1d(indices_a, indices_b)
    in_a, in_b = np.isin(union, indices_a), np.isin(union, indices_b)
    indices[:], values[:] = 0, 0
    indices[: union.size] = union
    values[: union.size][in_b] = values_b
    values[: union.size][in_a & ~in_b] = values_a[~np.isin(indices_a, indices_b)]
    both_a, both_b = np.isin(indices_a, indices_b), np.isin(indices_b, indices_a)
    values[: union.size][in_a & in_b] = values_a[both_a] + values_b[both_b]
