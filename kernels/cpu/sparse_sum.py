"""The sum of two sparse vectors for NumPy arrays; see :mod:`compressa.kernels.sparse_sum`."""

from __future__ import annotations

from .._arrays import F32, U32
from ._jit import jit


@jit
def _sum(
    indices_a: U32, values_a: F32, indices_b: U32, values_b: F32, indices: U32, values: F32
) -> None:
    a, b, at = 0, 0, 0
    while a < indices_a.size and b < indices_b.size:
        first, second = indices_a[a], indices_b[b]
        indices[at] = min(first, second)
        if first == second:
            values[at] = values_a[a] + values_b[b]
        else:
            values[at] = values_a[a] if first < second else values_b[b]
        a += first <= second
        b += second <= first
        at += 1
    rest = at + indices_a.size - a
    indices[at:rest], values[at:rest] = indices_a[a:], values_a[a:]
    at, rest = rest, rest + indices_b.size - b
    indices[at:rest], values[at:rest] = indices_b[b:], values_b[b:]
    indices[rest:], values[rest:] = 0, 0


def sum_sparse(
    indices_a: U32, values_a: F32, indices_b: U32, values_b: F32, indices: U32, values: F32
) -> None:
    _sum(indices_a, values_a, indices_b, values_b, indices, values)
