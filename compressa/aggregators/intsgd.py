"""IntSGD: integers that any all-reduce can sum (Mishchenko et al., 2021).

    q_i = round(alpha g_i), stochastic;  out = (1 / (P alpha)) sum_i q_i

with one alpha for all ranks. The paper derives it from how far the model has moved; here the
ranks agree on the largest magnitude s of each parameter first, and alpha = levels / s with the
most levels of which P add up in the wire's integers: P levels <= 2^(bits-1) - 1. Since levels is
an integer and |alpha g| <= levels, no rounding passes it, and no sum overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.shared_scale import SharedScale, most_levels
from compressa.bias import SMALLEST_NORMAL, Range, Unbiased
from compressa.codecs import bounds
from compressa.compressor import Granularity
from compressa.errors import ConfigError
from compressa.parameters import Layout

_DTYPES = {8: torch.int8, 16: torch.int16, 32: torch.int32}
_STREAM = 23


@dataclass(frozen=True, kw_only=True)
class IntSGD(AggregatingCompressor):
    """Round to integers of a scale that all ranks share, and sum the integers.

    Wire: 4 bytes a parameter for the maximum, then `bits` bits an element. Keeps no residual.

    Bias: unbiased, with a variance of at most 1 / (4 alpha^2) = (s / (2 levels))^2 per coordinate
    and rank, so 1/P of that for the mean: omega = (sqrt(1 + (P d - 1) / levels^2) - 1) / 2 for
    parameters of d elements, reached by one element beside others of 1 / (2 (1 + omega)) steps.

    Args:
        bits: Of an integer on the wire, 8, 16 or 32. P ranks have (2^(bits-1) - 1) // P levels:
            with 8 bits 63 on 2 ranks, 15 on 8, 1 on 64 to 127.

    Example:
        >>> IntSGD(bits=8).levels(4)
        31
    """

    name: ClassVar[str] = "intsgd"

    bits: Literal[8, 16, 32] = 8

    def __post_init__(self) -> None:
        if self.bits not in _DTYPES:
            raise ConfigError(f"intsgd: bits must be 8, 16 or 32, got {self.bits}")

    @property
    def granularity(self) -> Granularity:
        """The maximum is the parameter's."""
        return Granularity.PARAMETER

    def levels(self, size: int) -> int:
        """Return the largest integer that a rank sends, among `size` ranks.

        Raises:
            ConfigError: There is none: the sum of as many could overflow.
        """
        levels = most_levels(_DTYPES[self.bits], size)
        if levels == 0:
            raise ConfigError(
                f"intsgd: integers of {self.bits} bits of {size} ranks can overflow; "
                f"use bits = {2 * self.bits}"
            )
        return levels

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The integers and their scale."""
        return self.bits // 8 * math.prod(shape) + 4

    def bias_of_mean(self, elems: int, size: int) -> Unbiased:
        """Unbiased, as QSGD with a block of all ranks' gradients and their largest magnitude."""
        levels = self.levels(size)
        range_ = Range(size * levels * SMALLEST_NORMAL, bounds.LARGEST_BLOCK)
        return Unbiased(bounds.at_random(max(elems * size, 1) - 1, levels), range_)

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two rounds for the unit."""
        dtype, levels = _DTYPES[self.bits], self.levels(world.size)
        return SharedScale(layout, world, levels=levels, dtype=dtype, stream=_STREAM)
