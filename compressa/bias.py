"""What a codec declares of its error: of which kind it is, how large, and for which magnitudes."""

from __future__ import annotations

from dataclasses import dataclass, field

LARGEST = (2.0 - 2.0**-23) * 2.0**127
SMALLEST_NORMAL = 2.0**-126
SMALLEST = 2.0**-149
"""Numbers of float32 above 0."""


@dataclass(frozen=True)
class Range:
    """For which vectors an error bound holds: elements are 0, or have magnitudes in this range.

    Outside of it, a narrower type overflows or has no precision left, or a scale is subnormal. What
    a codec does not say it need not hold for the last powers of ten of float32.
    """

    smallest: float = 2.0**-100
    largest: float = 2.0**100


EVERY = Range(SMALLEST, LARGEST)
"""All finite numbers of float32."""


@dataclass(frozen=True)
class Unbiased:
    """E C(x) = x, and E||C(x) - x||^2 <= omega ||x||^2, for x in a range.

    Kernels round with 23 random bits: the mean of what arrives for an element of less than 2^-23 of
    its unit (of the distance of the two numbers that it may become) is 0.
    """

    omega: float
    range: Range = field(default=Range(), repr=False)


@dataclass(frozen=True)
class Contraction:
    """E||C(x) - x||^2 <= (1 - delta) ||x||^2 with 0 <= delta <= 1, for x in a range.

    Delta = 0 says only that the error is never longer than x, as of a threshold that may keep
    nothing at all.
    """

    delta: float
    range: Range = field(default=Range(), repr=False)


TYPICAL_ELEMS = 1 << 20
"""Bounds are stated for a length; that of any long vector shows their kind."""

LOSSLESS = Contraction(1.0)
"""What arrives is what was sent, bit for bit."""


@dataclass(frozen=True)
class Biased:
    """E||C(x) - x||^2 <= noise ||x||^2, for x in a range: for use without feedback."""

    noise: float
    range: Range = field(default=Range(), repr=False)


Bias = Unbiased | Contraction | Biased
