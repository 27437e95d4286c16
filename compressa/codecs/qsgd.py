"""qsgd: stochastic quantisation against a norm (Alistarh et al., 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, MultipleOf

from compressa.bias import SMALLEST_NORMAL, Range, Unbiased
from compressa.codecs import bounds
from compressa.codecs._blockwise import Blockwise
from compressa.kernels import blockwise


@dataclass(frozen=True, kw_only=True)
class QSGD(Blockwise):
    """Per block: l = |x| s / norm, rounded down or up at random; decode = sign(x) norm l / s.

    The paper's norm is the Euclidean one; with the largest magnitude instead this is linear
    dithering (as in BytePS), which errs less and sends more that is not zero.

    Wire format: ceil(n / block) little-endian float32 scales norm / s; then, with b the least of
    2, 4 and 8 bits that hold -s to s, the codes l sign(x) as in int2, int4 and int8. Bias:
    unbiased; with "l2" omega = sqrt(d) / s - 1 for blocks of d >= 4 s^2 elements, reached by equal
    ones, and d / (4 s^2) for shorter ones; with "max" (sqrt(1 + (d - 1) / s^2) - 1) / 2. A block
    with a NaN or an infinity decodes to NaN.

    Args:
        levels: The s of the paper: steps between 0 and the norm.
        block: Elements that share a norm (the paper's bucket).
        norm: l2 or max.

    Example:
        >>> QSGD(levels=7, block=512).wire_bytes(1024)
        520
    """

    name: ClassVar[str] = "qsgd"
    wire_id: ClassVar[int] = 10

    levels: Annotated[int, Ge(1), Le(127)] = 7
    block: Annotated[int, Ge(8), Le(65536), MultipleOf(4)] = 512
    norm: Literal["l2", "max"] = "l2"

    @property
    def stochastic(self) -> bool:
        """Always."""
        return True

    def bias(self, elems: int) -> Unbiased:
        """Unbiased; omega is that of `bounds.of_length` for "l2", of `bounds.at_random` for "max".

        It holds where the largest block's scale and the smallest element's step are normal numbers.
        """
        block = self._in_block(elems)
        smallest = self.levels * SMALLEST_NORMAL
        if self.norm == "l2":
            range_ = Range(smallest, bounds.LARGEST_BLOCK / math.sqrt(block))
            return Unbiased(bounds.of_length(block, self.levels), range_)
        range_ = Range(smallest, bounds.LARGEST_BLOCK)
        return Unbiased(bounds.at_random(block - 1, self.levels), range_)

    def _make_form(self) -> blockwise.Form:
        bits = 2 if self.levels == 1 else 4 if self.levels <= 7 else 8
        statistic: blockwise.Statistic = "l2" if self.norm == "l2" else "max"
        return blockwise.Form(bits=bits, block=self.block, statistic=statistic, levels=self.levels)
