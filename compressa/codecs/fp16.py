"""fp16: a cast to IEEE half precision, as PyTorch's `fp16_compress_hook` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from compressa.codecs._cast import Cast


@dataclass(frozen=True, kw_only=True)
class Fp16(Cast):
    """Send IEEE binary16: 11 bits of precision, range 6e-8 to 65504.

    Wire format: n little-endian binary16. Bias: relative error at most 2^-11 for magnitudes
    of 2^-14 to 65504. Larger ones become infinite, which a loss scaler sees and answers.

    Example:
        >>> Fp16().wire_bytes(10)
        20
    """

    name: ClassVar[str] = "fp16"
    wire_id: ClassVar[int] = 1
    wire_dtype: ClassVar[torch.dtype] = torch.float16
