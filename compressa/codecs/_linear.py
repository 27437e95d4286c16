"""What int8, int4 and int2 share: scales from the block's extremes, to nearest or stochastic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from compressa.bias import SMALLEST_NORMAL, Bias, Biased, Contraction, Range, Unbiased
from compressa.codecs import bounds
from compressa.codecs._blockwise import Blockwise
from compressa.kernels import blockwise


@dataclass(frozen=True, kw_only=True)
class Linear(Blockwise):
    """Integers of `bits` bits times the block's scale, symmetric or between its two extremes."""

    bits: ClassVar[int]

    mapping: Literal["symmetric", "maxmin"] = "symmetric"
    rounding: Literal["nearest", "stochastic"] = "nearest"

    @property
    def stochastic(self) -> bool:
        """As the rounding says."""
        return self.rounding == "stochastic"

    def bias(self, elems: int) -> Bias:
        """See `bounds` for "symmetric". With "maxmin", both extremes are exact.

        The other b - 2 elements err by half a step, to nearest, or have a variance of 1/4, and
        min^2 + max^2 >= (max - min)^2 / 2 = (scale L)^2 / 2: (b - 2) / (2 L^2), reached by
        -1, 0, ..., 0, 1, as L is odd.
        """
        block, levels = self._in_block(elems), self.form.top
        range_ = Range(levels * SMALLEST_NORMAL, bounds.LARGEST_BLOCK)
        if self.mapping == "symmetric":
            if self.stochastic:
                return Unbiased(bounds.at_random(block - 1, levels), range_)
            return Contraction(1.0 - bounds.to_nearest(block - 1, levels), range_)
        error = max(block - 2, 0) / (2.0 * levels**2) * bounds.ROUNDING
        if self.stochastic:
            return Unbiased(error, range_)
        return Contraction(1.0 - error, range_) if error < 1 else Biased(error, range_)

    def _make_form(self) -> blockwise.Form:
        statistic: blockwise.Statistic = "max" if self.mapping == "symmetric" else "range"
        return blockwise.Form(bits=self.bits, block=self.block, statistic=statistic)
