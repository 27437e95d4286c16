"""What fp16 and bf16 share: a cast to a 16-bit floating-point type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from compressa.arrays import as_array
from compressa.codecs.base import Codec, Contraction, Draw, Granularity, Range, Reduction
from compressa.codecs.fused import Fused
from compressa.kernels import casts


def rounding_of(dtype: torch.dtype) -> float:
    """Return the largest relative error of a cast, in the normal range."""
    half_ulp = torch.finfo(dtype).eps / 2
    return half_ulp / (1.0 + half_ulp)


def range_of(dtype: torch.dtype) -> Range:
    """Return the normal range of a dtype."""
    limits = torch.finfo(dtype)
    return Range(limits.tiny, limits.max)


@dataclass(frozen=True, kw_only=True)
class Cast(Codec):
    """Round to nearest, ties to even, in `wire_dtype`."""

    wire_dtype: ClassVar[torch.dtype]

    @property
    def granularity(self) -> Granularity:
        """Elements are independent."""
        return Granularity.ELEMENT

    @property
    def reduce(self) -> Reduction:
        """Payloads can be summed in 16 bits where the backend must do the sum."""
        return Reduction(self.wire_dtype)

    @property
    def error_feedback(self) -> bool:
        """Rounding is nearly unbiased and small: off unless asked for."""
        return False

    def wire_bytes(self, elems: int) -> int:
        """Two bytes per element."""
        return 2 * elems

    def sections(self, elems: int) -> tuple[int]:
        """One."""
        return (2 * elems,)

    def bias(self, elems: int) -> Contraction:
        """Half a unit h in the last place: relative to 1 + h, the tie that reaches it."""
        return Contraction(1.0 - rounding_of(self.wire_dtype) ** 2, range_of(self.wire_dtype))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Cast."""
        casts.narrow(as_array(x), self._values(payload))
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Cast back, multiply and add in one pass."""
        self.check(payload, out.numel())
        casts.widen(self._values(payload), as_array(out), weight=weight, add=True)

    @cached_property
    def fused(self) -> Fused:
        """What the kernels do in one pass."""
        return Fused(
            encode_feedback=self._encode_feedback,
            decode=self._decode,
            decode_sum=self._decode_sum,
        )

    def _encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float,
    ) -> int:
        """Add the residual, cast and keep what that loses, in one pass."""
        values = self._values(payload)
        casts.narrow(as_array(x), values, residual=as_array(residual), loss_scale=scale)
        return payload.numel()

    def _decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Cast back."""
        self.check(payload, out.numel())
        casts.widen(self._values(payload), as_array(out))

    def _decode_sum(
        self, payloads: Sequence[tuple[torch.Tensor, Draw]], out: torch.Tensor, weight: float
    ) -> None:
        """Cast back and add up all payloads in one pass."""
        for payload, _ in payloads:
            self.check(payload, out.numel())
        values = [self._values(payload) for payload, _ in payloads]
        casts.sum_casts(values, as_array(out), weight=weight)

    def _values(self, payload: torch.Tensor) -> casts.Half:
        """The payload as the kernel takes it: NumPy has no bfloat16, so its bits as uint16."""
        dtype = np.float16 if self.wire_dtype is torch.float16 else np.uint16
        values: casts.Half = as_array(payload).view(dtype)
        return values
