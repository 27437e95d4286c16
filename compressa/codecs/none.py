"""none: the gradient itself, in its own dtype.

The dense baseline: what `compressa` does when it does nothing. Bit for bit what plain
DistributedDataParallel computes on two ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from compressa.arrays import scratch_tensor
from compressa.bias import LOSSLESS
from compressa.codecs.base import Codec, Contraction, Draw, Granularity, Reduction
from compressa.codecs.fused import Fused


@dataclass(frozen=True, kw_only=True)
class NoCompression(Codec):
    """Send float32 values as they are.

    Gradients of other dtypes are sent in their own dtype by the `Dense` aggregator, which is
    what this codec becomes when no other codec shares its unit.

    Wire format: n little-endian float32. Bias: exact. Reducible in float32.

    Example:
        >>> NoCompression().wire_bytes(10)
        40
    """

    name: ClassVar[str] = "none"
    wire_id: ClassVar[int] = 0

    @property
    def granularity(self) -> Granularity:
        """Elements are independent."""
        return Granularity.ELEMENT

    @property
    def reduce(self) -> Reduction:
        """Payloads are float32 values; divided by the number of ranks, they sum safely."""
        return Reduction(torch.float32)

    @property
    def error_feedback(self) -> bool:
        """There is no error to feed back."""
        return False

    def wire_bytes(self, elems: int) -> int:
        """Four bytes per element."""
        return 4 * elems

    def bias(self, elems: int) -> Contraction:
        """Exact."""
        return LOSSLESS

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Copy."""
        payload.view(torch.float32).copy_(x)
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Multiply and add."""
        self.check(payload, out.numel())
        product = scratch_tensor("none.product", out.numel(), torch.float32, out.device)
        out.add_(torch.mul(payload.view(torch.float32), weight, out=product))

    @cached_property
    def fused(self) -> Fused:
        """A copy."""
        return Fused(decode=self._copy)

    def _copy(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        self.check(payload, out.numel())
        out.copy_(payload.view(torch.float32))
