"""What fp16 and bf16 share: a cast to a 16-bit floating-point type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from compressa.codecs._kernel import Array, KernelCodec, Parts
from compressa.codecs.base import Contraction, Draw, Granularity, Range, Reduction
from compressa.kernels import casts


def rounding_of(dtype: torch.dtype) -> float:
    """Return the largest relative error of a cast, in the normal range."""
    half_ulp = torch.finfo(dtype).eps / 2
    return half_ulp / (1.0 + half_ulp)


def range_of(dtype: torch.dtype) -> Range:
    """Return the magnitudes for which `rounding_of` holds: the normal numbers of a dtype."""
    limits = torch.finfo(dtype)
    return Range(limits.tiny, limits.max)


@dataclass(frozen=True, kw_only=True)
class Cast(KernelCodec):
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

    @property
    def recorded(self) -> bool:
        """There is."""
        return True

    def arrays(self, elems: int) -> tuple[int]:
        """Two bytes per element, in one array."""
        return (2 * elems,)

    def bias(self, elems: int) -> Contraction:
        """Half a unit h in the last place: relative to 1 + h, the tie that reaches it."""
        return Contraction(1.0 - rounding_of(self.wire_dtype) ** 2, range_of(self.wire_dtype))

    @property
    def takes_half(self) -> bool:
        """From float32 alone."""
        return False

    def quantize(
        self, x: Array, parts: Parts, draw: Draw, residual: Array | None, loss_scale: float
    ) -> None:
        """Cast."""
        casts.narrow(x, self._values(parts[0]), residual=residual, loss_scale=loss_scale)

    def dequantize(self, parts: Parts, out: Array, weight: float, *, add: bool) -> None:
        """Cast back."""
        casts.widen(self._values(parts[0]), out, weight=weight, add=add)

    def dequantize_sum(self, parts: Sequence[Parts], out: Array, weight: float) -> None:
        """Cast back and add up; see `KernelCodec.dequantize_sum`."""
        casts.sum_casts([self._values(part) for part in parts[0]], out, weight=weight)

    def _values(self, part: Array) -> casts.Half:
        """The payload as the kernel takes it: NumPy has no bfloat16, so its bits as uint16."""
        return part.view(np.float16 if self.wire_dtype is torch.float16 else np.uint16)
