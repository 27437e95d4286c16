"""terngrad_shared: three values at random, of one scale for all ranks (Wen et al., 2017).

    s = max over ranks of min(max|g_i|, clip rms(g_i))       round 1, a maximum
    b_i = sign(g_i) with probability |g_i| / s, else 0        round 2, a sum of integers
    out = (s / P) sum_i b_i

This is the paper's scaler sharing: ternary values of one scale add up as integers, in any order and
by any backend, so that nothing is encoded a second time. `terngrad` has a scale for each block and
two bits a value instead, which can not be added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le

from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.shared_scale import SharedScale, largest_magnitude, most_levels
from compressa.bias import SMALLEST_NORMAL, Biased, Range, Unbiased
from compressa.codecs import bounds
from compressa.compressor import Granularity
from compressa.errors import ConfigError
from compressa.parameters import Layout

_STREAM = 12  # the wire id of terngrad


@dataclass(frozen=True, kw_only=True)
class SharedTernGrad(AggregatingCompressor):
    """Round to -s, 0 or s, with the largest s that any rank needs, and sum.

    Each rank proposes for s its largest magnitude, or `clip` root mean squares if that is less (the
    paper: standard deviations, taking the mean as 0). Values beyond s are limited to it: where the
    paper cuts each rank at its own limit, nothing below the shared one is lost here.

    Wire: 4 bytes a parameter for the maximum, then an integer an element: 8 bits for up to 127
    ranks, 16 for more. Eight bits are four times those of `terngrad`, but any all-reduce can sum
    them; up to 63 ranks, `intsgd` makes more of them.

    Bias: unbiased about the clipped gradients, and over P ranks with a variance of
    (1 / P^2) sum_i (s ||g_i||_1 - ||g_i||_2^2) exactly: without clipping omega is
    (sqrt(P d) - 1) / 2 for parameters of d elements. What is clipped off is lost, and does not
    average out: the squared error is up to about P (||g_1||^2 + ...) / P^2, where all ranks have
    one large element at the same index. There is no residual. A parameter with a NaN or an infinity
    on some rank becomes NaN on all.

    Args:
        clip: In root mean squares; 0 for no clipping.

    Example:
        >>> SharedTernGrad().payload_bytes((1000, 1000))
        1000004
    """

    name: ClassVar[str] = "terngrad_shared"

    clip: Annotated[float, Ge(0), Le(10**6)] = 2.5

    def __post_init__(self) -> None:
        if not 0 <= self.clip < math.inf:
            raise ConfigError(f"{self.name}: clip must be finite and not negative: {self.clip}")

    @property
    def granularity(self) -> Granularity:
        """The scale is the parameter's."""
        return Granularity.PARAMETER

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The integers, of 8 bits, and their scale."""
        return math.prod(shape) + 4

    def bias_of_mean(self, elems: int, size: int) -> Unbiased | Biased:
        """See `bounds`: without clipping, all ranks' gradients are one block of `terngrad`."""
        elems = max(elems, 1)
        if not self.clip:
            range_ = Range(size * SMALLEST_NORMAL, bounds.LARGEST_BLOCK)
            return Unbiased(bounds.at_random(elems * size - 1, 1), range_)
        range_ = bounds.clipped_range(elems, self.clip, size)
        return Biased(bounds.clipped(elems, self.clip, size), range_)

    def measure(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scale that one rank needs; not finite if its gradient is not."""
        largest = largest_magnitude(x)
        if not self.clip or not x.numel():
            return largest
        # In float64, where no square overflows or underflows.
        length = torch.linalg.vector_norm(x, dtype=torch.float64)
        return torch.minimum(largest, length.mul_(self.clip).div_(math.sqrt(x.numel())))

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two rounds for the unit.

        Raises:
            ConfigError: There are more ranks than integers of 16 bits can count.
        """
        dtype = torch.int8 if most_levels(torch.int8, world.size) else torch.int16
        if not most_levels(dtype, world.size):
            raise ConfigError(f"{self.name}: {world.size} ranks are more than 16 bits can count")
        return SharedScale(
            layout, world, levels=1, dtype=dtype, stream=_STREAM, measure=self.measure
        )
