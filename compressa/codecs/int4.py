"""int4: blockwise linear quantisation to four bits, two codes to a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MultipleOf

from compressa.codecs._blockwise import Linear


@dataclass(frozen=True, kw_only=True)
class Int4(Linear):
    """Per block: q = round(x / scale), decode = q * scale, scale = max|x| / 7.

    With `mapping = "maxmin"`: q = round((x - min) / scale), decode = q * scale + min,
    scale = (max - min) / 15.

    Wire format: ceil(n / block) little-endian float32 scales; as many minima with "maxmin"; then
    per block of length L
    (the last may be shorter) m = ceil(L / 2) bytes: byte i has element i in its low nibble and
    element i + m in its high nibble, as q + 8 where symmetric.
    Bias: |error| <= scale / 2 to nearest (ties to even), a contraction; Stochastic: unbiased,
    with a variance of at most scale^2 / 4. A block with a NaN or an infinity decodes to NaN.

    Args:
        block: Elements that share a scale.
        mapping: symmetric: around 0; maxmin: between the block's two extremes.
        rounding: nearest, with error feedback; or stochastic, without.

    Example:
        >>> Int4(block=128).wire_bytes(1000)
        532
    """

    name: ClassVar[str] = "int4"
    wire_id: ClassVar[int] = 4
    bits: ClassVar[int] = 4

    block: Annotated[int, Ge(8), Le(65536), MultipleOf(2)] = 128
