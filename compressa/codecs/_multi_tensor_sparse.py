"""Codecs that send a fixed number of elements: on a CPU, all scopes of a unit in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from compressa.arrays import as_array
from compressa.codecs._multi_tensor import Listed, unowned
from compressa.codecs._sparse import SparseForm
from compressa.codecs.base import Codec, Draw
from compressa.codecs.fused import Checker, Decoder, Encoder, Item
from compressa.errors import PayloadError
from compressa.kernels.multi_tensor_sparse import (
    SparsePart,
    SparseParts,
    SparseVector,
    SparseVectors,
    check_sparse,
    multi_tensor_scatter,
    multi_tensor_top_k,
)
from compressa.kernels.threads import SHARED_ELEMS


class SparseEncoder(Listed[SparseVectors], Encoder):
    """Chooses from a list of vectors, and packs what is chosen."""

    def encode(self, draw: Draw, loss_scale: float) -> None:
        """Choose and pack."""
        multi_tensor_top_k(self._batch, loss_scale=loss_scale)


class SparseDecoder(Listed[SparseParts], Decoder):
    """Adds to a list of vectors what payloads hold of them.

    Args:
        batch: The vectors, and where in a payload they are.
        name: The codec's.
    """

    def __init__(self, batch: SparseParts, name: str) -> None:
        super().__init__(batch)
        self._name = name

    def decode(self, payload: torch.Tensor) -> None:
        """Write zeros and what it holds."""
        self.decode_sum([payload], 1.0)

    def decode_add(self, payload: torch.Tensor, weight: float) -> None:
        """Add what it holds."""
        with _refused(self._name):
            multi_tensor_scatter(self._batch, [as_array(payload)], weight=weight, add=True)

    def decode_sum(self, payloads: Sequence[torch.Tensor], weight: float) -> None:
        """Write zeros, and add what they hold in order."""
        with _refused(self._name):
            multi_tensor_scatter(self._batch, list(map(as_array, payloads)), weight=weight)


def encoder_of(
    codec: Codec,
    form: SparseForm,
    items: Sequence[Item],
    kept: Sequence[int],
    payload: torch.Tensor,
) -> SparseEncoder | None:
    """Return what encodes scopes on a CPU; None if they are not of one dtype.

    Args:
        codec: Says how long payloads are.
        form: How values and indices are laid out.
        items: The scopes.
        kept: How many elements of each are sent.
        payload: uint8, that of all scopes.
    """
    if len({item.values.dtype for item in items}) > 1:
        return None
    vectors = []
    for item, k in zip(items, kept, strict=True):
        n = item.values.numel()
        own = unowned(payload[item.start : item.start + codec.wire_bytes(n)])
        residual = None if item.residual is None else unowned(item.residual)
        indices = form.index_format(k, n)
        vectors.append(SparseVector(unowned(item.values), k, indices, own, residual))
    return SparseEncoder(SparseVectors(vectors, value_dtype=form.dtype))


def decoder_of(
    codec: Codec, form: SparseForm, items: Sequence[Item], kept: Sequence[int], payload_bytes: int
) -> SparseDecoder | None:
    """Return what decodes payloads on a CPU; None if not to float32, or if threads would share it.

    Args:
        codec: As of `encoder_of`.
        form: The same.
        items: The same.
        kept: The same.
        payload_bytes: Bytes of a payload.
    """
    if any(item.values.dtype is not torch.float32 for item in items):
        return None
    if max(kept, default=0) >= SHARED_ELEMS:
        return None
    scopes = [(item.values.numel(), item.start) for item in items]
    outs = [unowned(item.values) for item in items]
    return SparseDecoder(_parts(form, scopes, kept, outs, payload_bytes), codec.name)


def checker_of(
    codec: Codec,
    form: SparseForm,
    scopes: Sequence[tuple[int, int]],
    kept: Sequence[int],
    payload_bytes: int,
) -> Checker:
    """Return what checks payloads on a CPU.

    Args:
        codec: As of `encoder_of`.
        form: The same.
        scopes: Elements of each, and the byte at which it begins.
        kept: As of `encoder_of`.
        payload_bytes: Bytes of a payload.
    """
    parts = _parts(form, scopes, kept, [None] * len(kept), payload_bytes)

    def check(payload: torch.Tensor) -> None:
        with _refused(codec.name):
            check_sparse(parts, as_array(payload))

    return check


def _parts(
    form: SparseForm,
    scopes: Sequence[tuple[int, int]],
    kept: Sequence[int],
    outs: Sequence[Any],
    payload_bytes: int,
) -> SparseParts:
    parts = [
        SparsePart(n, k, form.index_format(k, n), start, out)
        for (n, start), k, out in zip(scopes, kept, outs, strict=True)
    ]
    return SparseParts(parts, value_dtype=np.dtype(form.dtype), payload_bytes=payload_bytes)


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """Say of which codec a payload is that is not right."""
    try:
        yield
    except ValueError as error:
        raise PayloadError(f"{name}: {error}") from error
