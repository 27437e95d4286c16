"""terngrad: three values at random, after clipping (Wen et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MultipleOf

from compressa.bias import SMALLEST_NORMAL, Biased, Range, Unbiased
from compressa.codecs import bounds
from compressa.codecs._blockwise import Blockwise
from compressa.kernels import blockwise


@dataclass(frozen=True, kw_only=True)
class TernGrad(Blockwise):
    """Per block: s = max|x|, decode = s sign(x) b with b = 1 with probability |x| / s, else 0.

    Before that, x is clipped to `clip` root mean squares of its block (the paper: standard
    deviations of a layer, taking the mean as 0), which keeps s, and so the noise, small.

    Wire format: ceil(n / block) little-endian float32 values of s, then two bits per element as
    in int2. Bias: unbiased about the clipped x, with a variance of s ||x||_1 - ||x||_2^2 exactly:
    without clipping omega = (sqrt(d) - 1) / 2 for blocks of d elements, reached by one element
    beside others of 1 / (sqrt(d) + 1). What is clipped off is lost, so that the squared error is up
    to nearly (1 + clip^2 / 8) ||x||^2 in blocks of many elements, or clip - 1 from clip = 4 on. A
    block with a NaN or an infinity decodes to NaN.

    Args:
        block: Elements that share a scale.
        clip: In root mean squares; 0 for no clipping.

    Example:
        >>> TernGrad(block=512).wire_bytes(1024)
        264
    """

    name: ClassVar[str] = "terngrad"
    wire_id: ClassVar[int] = 12

    block: Annotated[int, Ge(8), Le(65536), MultipleOf(4)] = 512
    clip: Annotated[float, Ge(0), Le(10**6)] = 2.5

    @property
    def stochastic(self) -> bool:
        """Always."""
        return True

    def bias(self, elems: int) -> Unbiased | Biased:
        """See `bounds`."""
        block = self._in_block(elems)
        if not self.clip:
            range_ = Range(SMALLEST_NORMAL, bounds.LARGEST_BLOCK)
            return Unbiased(bounds.at_random(block - 1, 1), range_)
        range_ = bounds.clipped_range(block, self.clip)
        return Biased(bounds.clipped(block, self.clip), range_)

    def _make_form(self) -> blockwise.Form:
        if not self.clip:
            return blockwise.Form(bits=2, block=self.block)
        return blockwise.Form(bits=2, block=self.block, statistic="clipped", clip=self.clip)
