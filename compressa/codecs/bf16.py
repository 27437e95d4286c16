"""bf16: a cast to bfloat16, the range of float32 in half the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from compressa.codecs._cast import Cast


@dataclass(frozen=True, kw_only=True)
class Bf16(Cast):
    """Send bfloat16: 8 bits of precision, the range of float32.

    Wire format: n little-endian bfloat16. Bias: relative error at most 2^-8 for normal
    magnitudes. Where compressa itself sums (scatter-reduce), the sum is in float32 and is
    rounded once.

    Example:
        >>> Bf16().wire_bytes(10)
        20
    """

    name: ClassVar[str] = "bf16"
    wire_id: ClassVar[int] = 2
    wire_dtype: ClassVar[torch.dtype] = torch.bfloat16
