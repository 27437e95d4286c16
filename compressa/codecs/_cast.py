"""What fp16 and bf16 share: a cast to a 16-bit floating-point type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from compressa.codecs.base import Codec, Contraction, Draw, Granularity, Reduction


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

    def bias(self, elems: int) -> Contraction:
        """Half a unit in the last place, relative, for values in the normal range."""
        half_ulp = torch.finfo(self.wire_dtype).eps / 2
        return Contraction(1.0 - half_ulp**2)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Cast."""
        payload.view(self.wire_dtype).copy_(x)
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Cast back, multiply and add."""
        self.check(payload, out.numel())
        out.add_(payload.view(self.wire_dtype).to(torch.float32).mul_(weight))
