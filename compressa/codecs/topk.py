"""topk: the k elements of largest magnitude, exactly (Aji and Heafield, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Gt, Le

from compressa.arrays import as_array
from compressa.codecs._multi_tensor_sparse import (
    SparseDecoder,
    checker_of,
    encoder_of,
    fixed_parts,
    outs_of,
)
from compressa.codecs._recorded import RecordedDecoder, RecordedEncoder
from compressa.codecs._sparse import (
    F32,
    U8,
    U32,
    Gradient,
    IndexFormat,
    SparseForm,
    ValueDtype,
    share,
)
from compressa.codecs.base import Codec, Contraction, Draw, Granularity
from compressa.codecs.fused import Checker, Decoder, Encoder, Fused, Item, Ways
from compressa.errors import ConfigError
from compressa.kernels import topk
from compressa.kernels.scratch import scratch


@dataclass(frozen=True, kw_only=True)
class TopK(Codec):
    """Keep k = max(1, round(density * n)) elements of largest |x|; ties go to the lowest index.

    Wire format: k little-endian values in `value_dtype`, in the order of their indices; then the
    indices, as k numbers of ceil(log2 n) bits each in one little-endian bit stream ("bits"), as a
    bitmap of n bits (bit e % 8 of byte e // 8), or by Elias-Fano, which takes about 2 + log2(n / k)
    bits each: l = floor(log2(n / k)) low bits in a bit stream, then a bitmap of ((n - 1) >> l) + k
    bits with bit (index >> l) + i set for the i-th index. "auto" is the smallest, the first of
    equal ones. Bias: a contraction with delta = k / n, deterministic. A scope with a NaN or an
    infinity sends a NaN and zeros.

    Args:
        density: k / n.
        value_dtype: Dtype of the values on the wire; what a cast loses stays in the residual.
        indices: Format of the indices.

    Example:
        >>> TopK(density=0.01).wire_bytes(1_000_000)
        50703
    """

    name: ClassVar[str] = "topk"
    wire_id: ClassVar[int] = 6

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    value_dtype: ValueDtype = "float32"
    indices: IndexFormat = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"topk: density must be in (0, 1], got {self.density}")
        self.form  # noqa: B018 - it checks itself

    @cached_property
    def form(self) -> SparseForm:
        """How values and indices are laid out."""
        return SparseForm(self.name, self.value_dtype, self.indices)

    @property
    def granularity(self) -> Granularity:
        """The largest elements are chosen over the whole parameter."""
        return Granularity.PARAMETER

    def kept(self, elems: int) -> int:
        """Return k for a scope of `elems` elements."""
        return share(self.density, elems)

    @property
    def takes_half(self) -> bool:
        """The kernel widens."""
        return True

    def wire_bytes(self, elems: int) -> int:
        """Values, then indices."""
        return self.form.bytes(self.kept(elems), elems)

    def bias(self, elems: int) -> Contraction:
        """Delta = k / n; a 16-bit cast of the kept values costs a little more."""
        return Contraction(
            self.kept(elems) / max(elems, 1) * (1.0 - self.form.rounding**2), self.form.range
        )

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Select and pack."""
        return self._select(x, None, payload, draw, 1.0)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, check every index, and scatter."""
        indices, values = self._read(as_array(payload), out.numel(), draw)
        topk.scatter_add(indices, values, as_array(out), weight=weight, check=False)

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        """See `Codec.check_content`: every index."""
        self.form.check(as_array(payload), elems, self.kept(elems))

    @cached_property
    def fused(self) -> Fused:
        """Add the residual, select, and leave in the residual what was not sent."""
        return Fused(
            encode_feedback=self._select,
            encoder=self._encoder,
            decoder=self._decoder,
            ways=self._ways,
            checker=self._checker,
        )

    def _select(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        payload: torch.Tensor,
        draw: Draw,
        loss_scale: float,
    ) -> int:
        kept = None if residual is None else as_array(residual)
        self._write(as_array(x), as_array(payload), kept, draw, loss_scale)
        return payload.numel()

    def _write(
        self, x: Gradient, packed: U8, residual: F32 | None, draw: Draw, loss_scale: float
    ) -> None:
        k = self.kept(x.size)
        indices = scratch("sparse.indices", k, np.uint32, beside=packed)
        values = self.form.values(packed, k)
        topk.select_top_k(x, k, indices, values, residual=residual, loss_scale=loss_scale)
        sent = self.form.write(packed, x.size, indices, values)
        if residual is not None and not self.form.lossless:
            topk.return_unsent(residual, indices, values, sent, loss_scale=loss_scale)

    def _read(self, packed: U8, elems: int, draw: Draw | None) -> tuple[U32, F32]:
        return self.form.read(packed, elems, self.kept(elems))

    @cached_property
    def _ways(self) -> Ways:
        """On arrays of a GPU."""
        return Ways(encode=self._write, read=self._read, put=self.form.put)

    def _encoder(self, items: Sequence[Item], payload: torch.Tensor) -> Encoder | None:
        if payload.is_cuda:
            return RecordedEncoder(self, self._ways, items, payload, draws=False)
        return encoder_of(self, self.form, items, self._kept(items), payload)

    def _decoder(self, items: Sequence[Item], payload_bytes: int) -> Decoder | None:
        if items[0].values.is_cuda:
            return RecordedDecoder(self, self._ways, items)
        kept = self._kept(items)
        outs = outs_of(items, kept)
        if outs is None:
            return None
        scopes = [(item.values.numel(), item.start) for item in items]
        return SparseDecoder(fixed_parts(self.form, scopes, kept, payload_bytes, outs), self.name)

    def _checker(self, scopes: Sequence[tuple[int, int]], payload_bytes: int) -> Checker:
        kept = [self.kept(elems) for elems, _ in scopes]
        outs = [None] * len(kept)
        return checker_of(fixed_parts(self.form, scopes, kept, payload_bytes, outs), self.name)

    def _kept(self, items: Sequence[Item]) -> list[int]:
        return [self.kept(item.values.numel()) for item in items]
