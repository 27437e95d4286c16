"""int8: blockwise linear quantisation to eight bits (Dettmers et al., 2022, linear map)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MultipleOf

from compressa.codecs._blockwise import Linear


@dataclass(frozen=True, kw_only=True)
class Int8(Linear):
    """Per block: q = round(x / scale), decode = q * scale, scale = max|x| / 127.

    With `mapping = "maxmin"`: q = round((x - min) / scale), decode = q * scale + min,
    scale = (max - min) / 255.

    Wire format: ceil(n / block) little-endian float32 scales; as many minima with "maxmin"; then
    n bytes, two's complement where symmetric.
    Bias: |error| <= scale / 2 to nearest (ties to even), a contraction; Stochastic: unbiased,
    with a variance of at most scale^2 / 4. A block with a NaN or an infinity decodes to NaN.

    Args:
        block: Elements that share a scale.
        mapping: symmetric: around 0; maxmin: between the block's two extremes.
        rounding: nearest, with error feedback; or stochastic, without.

    Example:
        >>> Int8(block=256).wire_bytes(1000)
        1016
    """

    name: ClassVar[str] = "int8"
    wire_id: ClassVar[int] = 3
    bits: ClassVar[int] = 8

    block: Annotated[int, Ge(8), Le(65536), MultipleOf(2)] = 256
