"""int4: blockwise linear quantisation to four bits, two codes to a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MultipleOf

from compressa.codecs._blockwise import Blockwise


@dataclass(frozen=True, kw_only=True)
class Int4(Blockwise):
    """Per block: unit = max|x| / 7, code = round(x / unit), decode = code * unit.

    Wire format: ceil(n / block) little-endian float32 units, then per block of length L
    (the last may be shorter) ceil(L / 2) bytes; with half = ceil(L / 2), byte i has element i
    in its low nibble and element i + half in its high nibble, each as code + 8.
    Bias: |error| <= unit / 2; a contraction. A block with a NaN or an infinity decodes to NaN.

    Args:
        block: Elements that share a unit.

    Example:
        >>> Int4(block=128).wire_bytes(1000)
        532
    """

    name: ClassVar[str] = "int4"
    wire_id: ClassVar[int] = 4
    bits: ClassVar[int] = 4

    block: Annotated[int, Ge(8), Le(65536), MultipleOf(2)] = 128
