"""Sparse codecs: on a CPU, all scopes of a unit in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from compressa.arrays import as_array
from compressa.codecs._multi_tensor import Listed, unowned
from compressa.codecs._sparse import SparseForm
from compressa.codecs.base import Codec, Draw
from compressa.codecs.fused import Checker, Decoder, Encoder, Item
from compressa.codecs.payload import HEADER_BYTES
from compressa.errors import PayloadError
from compressa.kernels.multi_tensor_sparse import (
    SparseVector,
    SparseVectors,
    check_sparse,
    multi_tensor_scatter,
    multi_tensor_top_k,
)
from compressa.kernels.sparse_parts import (
    CountedPart,
    CountedParts,
    Parts,
    SparsePart,
    SparseParts,
)
from compressa.kernels.threads import SHARED_ELEMS


class SparseEncoder(Listed[SparseVectors], Encoder):
    """Chooses from a list of vectors, and packs what is chosen."""

    def encode(self, draw: Draw, loss_scale: float) -> None:
        """Choose and pack."""
        multi_tensor_top_k(self._batch, loss_scale=loss_scale)


class SparseDecoder(Listed[Parts], Decoder):
    """Adds to a list of vectors what payloads hold of them.

    Args:
        batch: The vectors, and where in a payload they are.
        name: The codec's.
    """

    def __init__(self, batch: Parts, name: str) -> None:
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


def fixed_parts(
    form: SparseForm,
    scopes: Sequence[tuple[int, int]],
    kept: Sequence[int],
    payload_bytes: int,
    outs: Sequence[Any],
) -> SparseParts:
    """Return where payloads have what they hold of scopes, where that is the same in each.

    Args:
        form: As of `encoder_of`.
        scopes: Elements of each, and the byte at which it begins.
        kept: As of `encoder_of`.
        payload_bytes: Bytes of a payload.
        outs: To what each is added; None for what is only checked.
    """
    parts = [
        SparsePart(n, k, form.index_format(k, n), start, out)
        for (n, start), k, out in zip(scopes, kept, outs, strict=True)
    ]
    return SparseParts(parts, value_dtype=form.dtype, payload_bytes=payload_bytes)


def counted_parts(
    form: SparseForm, elems: Sequence[int], most: Sequence[int], outs: Sequence[Any]
) -> CountedParts:
    """Return where payloads have what they hold of scopes, where they say it themselves.

    Args:
        form: As of `encoder_of`.
        elems: Elements of each scope.
        most: How many of each are sent at most.
        outs: As of `fixed_parts`.
    """
    parts = [
        CountedPart(n, k, form.indices, out) for n, k, out in zip(elems, most, outs, strict=True)
    ]
    return CountedParts(parts, value_dtype=form.dtype, first=HEADER_BYTES)


def outs_of(items: Sequence[Item], most: Sequence[int]) -> list[Any] | None:
    """Return what is decoded to on a CPU; None if not to float32, or if threads would share it.

    Args:
        items: The scopes.
        most: How many elements of each a payload holds at most.
    """
    if any(item.values.dtype is not torch.float32 for item in items):
        return None
    if max(most, default=0) >= SHARED_ELEMS:
        return None
    return [unowned(item.values) for item in items]


def checker_of(parts: Parts, name: str) -> Checker:
    """Return what checks payloads on a CPU.

    Args:
        parts: What they hold of the scopes.
        name: The codec's.
    """

    def check(payload: torch.Tensor) -> None:
        with _refused(name):
            check_sparse(parts, as_array(payload))

    return check


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """Say of which codec a payload is that is not right."""
    try:
        yield
    except ValueError as error:
        raise PayloadError(f"{name}: {error}") from error
