"""int2: blockwise linear quantisation to two bits, four codes to a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MultipleOf

from compressa.codecs._blockwise import Linear


@dataclass(frozen=True, kw_only=True)
class Int2(Linear):
    """Per block: q = round(x / scale), decode = q * scale, scale = max|x| / 1.

    With `mapping = "maxmin"`: q = round((x - min) / scale), decode = q * scale + min,
    scale = (max - min) / 3.

    Wire format: ceil(n / block) little-endian float32 scales; as many minima with "maxmin"; then
    per block of length L
    (the last may be shorter) m = ceil(L / 4) bytes: byte i has elements i, i + m, i + 2 m and
    i + 3 m, two bits each from the lowest, as q + 2 where symmetric.
    Bias: |error| <= scale / 2 to nearest (ties to even), a contraction;
    With "maxmin" and blocks of more than 18 elements it is no contraction: zeros are not on the
    grid, and what they cost may exceed the gradient itself. Stochastic: unbiased,
    with a variance of at most scale^2 / 4. A block with a NaN or an infinity decodes to NaN.

    Args:
        block: Elements that share a scale.
        mapping: symmetric: around 0; maxmin: between the block's two extremes.
        rounding: nearest, with error feedback; or stochastic, without.

    Example:
        >>> Int2(block=64).wire_bytes(1000)
        314
    """

    name: ClassVar[str] = "int2"
    wire_id: ClassVar[int] = 8
    bits: ClassVar[int] = 2

    block: Annotated[int, Ge(8), Le(65536), MultipleOf(4)] = 64
