"""topk: the k elements of largest magnitude, exactly (Aji and Heafield, 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Gt, Le

from compressa.codecs.base import Codec, Contraction, Draw, Granularity
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import bitpack, topk

_VALUE_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, kw_only=True)
class TopK(Codec):
    """Keep k = max(1, round(density * n)) elements of largest |x|; ties go to the lowest index.

    Wire format: k little-endian values in `value_dtype`, in the order of their indices; then
    the indices, as k numbers of ceil(log2 n) bits each in one little-endian bit stream, or as
    a bitmap of n bits (bit e % 8 of byte e // 8) where that is smaller. Bias: a contraction
    with delta = k / n, deterministic. A scope with a NaN or an infinity sends k NaNs.

    Args:
        density: k / n.
        value_dtype: Dtype of the values on the wire; what a cast loses stays in the residual.

    Example:
        >>> TopK(density=0.01).wire_bytes(1_000_000)
        65000
    """

    name: ClassVar[str] = "topk"
    wire_id: ClassVar[int] = 6

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    value_dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"topk: density must be in (0, 1], got {self.density}")
        if self.value_dtype not in _VALUE_DTYPES:
            raise ConfigError(
                f"topk: value_dtype must be one of {', '.join(_VALUE_DTYPES)}, "
                f"got {self.value_dtype!r}"
            )

    @property
    def granularity(self) -> Granularity:
        """The largest elements are chosen over the whole parameter."""
        return Granularity.PARAMETER

    def kept(self, elems: int) -> int:
        """Return k for a scope of `elems` elements."""
        return min(elems, max(1, round(self.density * elems)))

    def wire_bytes(self, elems: int) -> int:
        """Values, then the smaller of packed indices and bitmap."""
        return self._value_bytes(elems) + self._index_bytes(elems)

    def bias(self, elems: int) -> Contraction:
        """Delta = k / n; a 16-bit cast of the kept values costs a little more."""
        lost = (torch.finfo(self._dtype).eps / 2) ** 2 if self.value_dtype != "float32" else 0.0
        return Contraction(self.kept(elems) / max(elems, 1) * (1.0 - lost))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Select, cast and pack."""
        indices, values = self._buffers(x.numel())
        topk.select_top_k(x.numpy(), len(indices), indices, values)
        self._write(payload, x.numel(), indices, values)
        return payload.numel()

    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        """Add the residual, select, and leave in the residual what was not sent."""
        indices, values = self._buffers(x.numel())
        topk.select_top_k(
            x.numpy(), len(indices), indices, values, residual=residual.numpy(), scale=scale
        )
        sent = self._write(payload, x.numel(), indices, values)
        if self.value_dtype != "float32":
            cast = sent.float().numpy()
            topk.return_unsent(residual.numpy(), indices, values, cast, scale=scale)
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, check every index, and scatter."""
        indices = self._read_indices(payload, out.numel())
        values = payload[: self._value_bytes(out.numel())].view(self._dtype).float().numpy()
        topk.scatter_add(indices, values, out.numpy(), weight=weight)

    def check(self, payload: torch.Tensor, elems: int) -> None:
        """Check the length and every index."""
        self._read_indices(payload, elems)

    @property
    def _dtype(self) -> torch.dtype:
        return _VALUE_DTYPES[self.value_dtype]

    def _value_bytes(self, elems: int) -> int:
        return self.kept(elems) * self._dtype.itemsize

    def _packed_index_bytes(self, elems: int) -> int:
        return bitpack.packed_bytes(self.kept(elems), bitpack.index_width(elems))

    def _index_bytes(self, elems: int) -> int:
        return min(self._packed_index_bytes(elems), (elems + 7) // 8)

    def _is_bitmap(self, elems: int) -> bool:
        return (elems + 7) // 8 < self._packed_index_bytes(elems)

    def _buffers(self, elems: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        kept = self.kept(elems)
        return np.empty(kept, np.uint32), np.empty(kept, np.float32)

    def _write(
        self,
        payload: torch.Tensor,
        elems: int,
        indices: npt.NDArray[np.uint32],
        values: npt.NDArray[np.float32],
    ) -> torch.Tensor:
        split = self._value_bytes(elems)
        sent = payload[:split].view(self._dtype)
        sent.copy_(torch.from_numpy(values))
        packed = payload[split:].numpy()
        if self._is_bitmap(elems):
            bitpack.pack_bitmap(indices, elems, packed)
        else:
            bitpack.pack_bits(indices, bitpack.index_width(elems), packed)
        return sent

    def _read_indices(self, payload: torch.Tensor, elems: int) -> npt.NDArray[np.uint32]:
        super().check(payload, elems)
        packed = payload[self._value_bytes(elems) :].numpy()
        indices = np.empty(self.kept(elems), np.uint32)
        if self._is_bitmap(elems):
            try:
                count = bitpack.unpack_bitmap(packed, elems, indices)
            except ValueError as error:
                raise PayloadError(f"topk: {error}") from error
            if count != len(indices):
                raise PayloadError(f"topk: the bitmap does not have {len(indices)} bits set")
            return indices
        bitpack.unpack_bits(packed, bitpack.index_width(elems), indices)
        if len(indices) and (indices[-1] >= elems or (indices[1:] <= indices[:-1]).any()):
            raise PayloadError(
                f"topk: the indices are not strictly increasing numbers below {elems}"
            )
        return indices
