"""Many sparse vectors in one call: the k largest of each, packed; and payloads of them, added up.

What a vector sends lies in a payload as its values, float32 or of 16 bits, in the order of their
indices, and then the indices (:mod:`.index_formats`). Each vector gets the bits that calls of its
own give.

For arrays on a CPU only: to call the kernels of a small vector takes Python longer than these
take. A GPU records their launches (`compressa.kernels.cuda.Recording`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._arrays import F32, I64, U8, Gradient, array_at, check_array, check_feedback, check_gradient
from ._backends import backend
from .casts import narrow, widen
from .index_formats import pack_indices
from .scratch import scratch
from .sparse_parts import Parts, part_bytes, read_part
from .topk import return_unsent, scatter_add, select_top_k


class SparseVector(NamedTuple):
    """One vector of a list that is chosen from.

    Attributes:
        x: The gradient: float32[n]; or float16, or bfloat16 as uint16.
        kept: How many of its elements are sent, at most n; at least one if n is not 0.
        indices: The format of their indices.
        payload: uint8, its own bytes, overwritten; they begin at a multiple of 4.
        residual: float32[n], updated in place; None for no feedback.
    """

    x: Gradient
    kept: int
    indices: str
    payload: U8
    residual: F32 | None = None


class SparseVectors:
    """Vectors that are chosen from in one call, checked once.

    Args:
        vectors: Of one dtype. Nothing that is written overlaps.
        value_dtype: Of the values in a payload: float32, float16, or uint16 for bfloat16.

    Raises:
        TypeError: A dtype is wrong, or differs.
        ValueError: A shape or a layout is wrong, or `kept`.
        KernelUnavailable: There is no kernel for the device.

    Attributes:
        vectors: As given, until they move.
        value_dtype: As given.
        kernel: The backend of the device that holds them; None if made within `reference`.
        prepared: What that has worked out for later calls; its own affair.
    """

    __slots__ = ("kernel", "prepared", "value_dtype", "vectors")

    def __init__(self, vectors: Sequence[SparseVector], *, value_dtype: npt.DTypeLike) -> None:
        self.value_dtype = np.dtype(value_dtype)
        for vector in vectors:
            _check(vector, self.value_dtype)
        if len({vector.x.dtype for vector in vectors}) > 1:
            raise TypeError("all vectors of a list must have one dtype")
        self.vectors = tuple(vectors)
        self.kernel = backend("multi_tensor_sparse", *(vector.x for vector in vectors))
        self.prepared: Any = None

    def move(self, addresses: I64) -> None:
        """Have each vector's values lie elsewhere from now on: as many, of the same dtype.

        Args:
            addresses: By vector; the memory is the caller's to keep.
        """
        if self.prepared is not None:
            self.prepared.move(addresses)
            return
        pairs = zip(self.vectors, addresses.tolist(), strict=True)
        self.vectors = tuple(vector._replace(x=array_at(at, vector.x)) for vector, at in pairs)


def multi_tensor_top_k(batch: SparseVectors, *, loss_scale: float = 1.0) -> None:
    """Choose and pack what every vector of a list sends; see `select_top_k`.

    What values of 16 bits lose stays in the residual (`return_unsent`).

    Args:
        batch: The vectors.
        loss_scale: Loss scale that the gradients carry and the residuals do not.

    Raises:
        ValueError: `loss_scale` is wrong.
    """
    check_feedback(None, 0, loss_scale)
    if batch.kernel:
        batch.kernel.multi_tensor_top_k(batch, loss_scale=loss_scale)
        return
    for vector in batch.vectors:
        pack_top_k(vector, batch.value_dtype, loss_scale)


def pack_top_k(vector: SparseVector, value_dtype: np.dtype[Any], loss_scale: float) -> None:
    """Do with one vector what `multi_tensor_top_k` does with each."""
    x, k, form, payload, residual = vector
    split = k * value_dtype.itemsize
    indices = scratch("sparse.indices", k, np.uint32)
    sent = payload[:split].view(value_dtype)
    whole = value_dtype == np.float32
    values = sent if whole else scratch("sparse.values", k, np.float32)
    select_top_k(x, k, indices, values, residual=residual, loss_scale=loss_scale)
    pack_indices(indices, x.size, form, payload[split:])
    if not whole:
        narrow(values, sent)
        if residual is not None:
            wide = scratch("sparse.wide", k, np.float32)
            widen(sent, wide)
            return_unsent(residual, indices, values, wide, loss_scale=loss_scale)


def multi_tensor_scatter(
    batch: Parts, payloads: Sequence[U8], *, weight: float = 1.0, add: bool = False
) -> None:
    """Write the weighted sum of several payloads to every vector, or add it.

    A sum begins with 0, or with what the vector holds, and takes the payloads in order, as
    `scatter_add` adds one.

    Args:
        batch: The vectors; each has its `out`.
        payloads: uint8, each at an address that is a multiple of 4.
        weight: Factor on every value.
        add: Whether to add to what the vectors hold.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A payload's length, layout or device is wrong, or what it has as indices is not
            increasing or not below the vector's end; some vectors are written then, none beyond
            its end.
    """
    _check_payloads(payloads)
    if any(part.out is None for part in batch.parts):
        raise ValueError("the parts of a list that is only checked have nothing to add to")
    if batch.kernel:
        batch.kernel.multi_tensor_scatter(batch, payloads, weight=weight, add=add)
        return
    located = list(map(batch.located, payloads))
    for i, whole in enumerate(batch.parts):
        if not add:
            whole.out[:] = 0
        for payload, parts in zip(payloads, located, strict=True):
            indices, values = read_part(parts[i], batch.value_dtype, payload)
            scatter_add(indices, values, whole.out, weight=weight)


def check_sparse(batch: Parts, payload: U8) -> None:
    """Refuse a payload that `multi_tensor_scatter` refuses; nothing is written.

    Args:
        batch: The vectors.
        payload: As there.

    Raises:
        TypeError: As there.
        ValueError: As there.
    """
    _check_payloads([payload])
    if batch.kernel:
        batch.kernel.check_sparse(batch, payload)
        return
    for part in batch.located(payload):
        read_part(part, batch.value_dtype, payload)


def _check(vector: SparseVector, value_dtype: np.dtype[Any]) -> None:
    x, k, form, payload, residual = vector
    check_gradient(x)
    check_feedback(residual, x.size, 1.0)
    size = part_bytes(x.size, k, form, value_dtype)
    check_array("payload", payload, np.uint8, (size,), writable=True)
    values = payload[: k * value_dtype.itemsize].view(value_dtype)
    check_array("values", values, value_dtype, writable=True)


def _check_payloads(payloads: Sequence[U8]) -> None:
    for payload in payloads:
        check_array("payload", payload, np.uint8, (payload.size,))
        check_array("payload", payload[: payload.size // 4 * 4].view(np.float32), np.float32)
