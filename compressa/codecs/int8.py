"""int8: blockwise linear quantisation to eight bits (Dettmers et al., 2022, linear map)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MultipleOf

from compressa.codecs._blockwise import Blockwise


@dataclass(frozen=True, kw_only=True)
class Int8(Blockwise):
    """Per block: unit = max|x| / 127, code = round(x / unit), decode = code * unit.

    Wire format: ceil(n / block) little-endian float32 units, then n two's-complement bytes.
    Bias: |error| <= unit / 2 (nearest, ties to even); a contraction. A block with a NaN or an
    infinity decodes to NaN.

    Args:
        block: Elements that share a unit.

    Example:
        >>> Int8(block=256).wire_bytes(1000)
        1016
    """

    name: ClassVar[str] = "int8"
    wire_id: ClassVar[int] = 3
    bits: ClassVar[int] = 8

    block: Annotated[int, Ge(8), Le(65536), MultipleOf(2)] = 256
