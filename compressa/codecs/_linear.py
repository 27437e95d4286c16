"""What int8, int4 and int2 share: units from the block's extremes, to nearest or stochastic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from compressa.codecs._blockwise import Blockwise
from compressa.codecs.base import Bias, Biased, Contraction, Unbiased
from compressa.kernels import blockwise

_ROUNDING = 1 + 1e-5  # what float32 adds to bounds that are worked out in real numbers


@dataclass(frozen=True, kw_only=True)
class Linear(Blockwise):
    """Integers of `bits` bits times the block's unit, symmetric or between its two extremes."""

    bits: ClassVar[int]

    mapping: Literal["symmetric", "maxmin"] = "symmetric"
    rounding: Literal["nearest", "stochastic"] = "nearest"

    @property
    def stochastic(self) -> bool:
        """As the rounding says."""
        return self.rounding == "stochastic"

    def bias(self, elems: int) -> Bias:
        """The extremes are exact; the others err by half a unit, or with a variance of 1/4."""
        block = self._in_block(elems)
        # Unit^2 in terms of ||x||^2: m^2 / L^2, and (max - min)^2 <= 2 (max^2 + min^2).
        share = 1.0 if self.mapping == "symmetric" else 2.0
        error = share * (block - 1) / (4.0 * self.form.top**2) * _ROUNDING
        if self.stochastic:
            return Unbiased(error)
        if self.mapping == "symmetric":
            # Nothing is rounded away from 0 by more than it has itself, and the largest is exact.
            return Contraction(max(1.0 - error, (2 - _ROUNDING) / block))
        return Contraction(1.0 - error) if error < 1 else Biased(error)

    def _make_form(self) -> blockwise.Form:
        statistic: blockwise.Statistic = "max" if self.mapping == "symmetric" else "range"
        return blockwise.Form(bits=self.bits, block=self.block, statistic=statistic)
