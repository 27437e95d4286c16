"""natural: stochastic rounding to powers of two (Horvath et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le, MultipleOf

from compressa.bias import SMALLEST_NORMAL, Range
from compressa.codecs import bounds
from compressa.codecs._kernel import Array, KernelCodec, Parts
from compressa.codecs.base import Draw, Unbiased
from compressa.codecs.fused import Fused
from compressa.errors import ConfigError
from compressa.kernels import block_count, natural, natural_dithering
from compressa.kernels.philox import Noise


@dataclass(frozen=True, kw_only=True)
class Natural(KernelCodec):
    """|x| = 2^e (1 + f) becomes 2^(e+1) with probability f, else 2^e; the sign stays.

    With `levels` it is the paper's natural dithering: |x| / N, with the norm N of a block, is
    rounded at random to one of the two beside it of 0, 2^(1-s), ..., 1/4, 1/2, 1, for s levels.
    Where QSGD has equal steps, these halve, and as few bits reach down to much smaller values.

    Wire format: n bytes, the biased exponents as in float32 (0 for 0, 255 for what is not finite);
    then ceil(n / 8) bytes of signs: in each group of 1024 elements (the last may be shorter), with
    m bytes, bit j of byte i is the sign of element j * m + i, 1 for negative. With levels:
    ceil(n / block) little-endian float32 norms; then codes of 1 + bit_length(s) bits, block after
    block in planes of one bit, each of m bytes as for signs: first the bits of the level from the
    lowest (0 for 0, j for N 2^(j-s)), last the sign (0 where the level is 0).

    Bias: unbiased with omega = 1/8, whatever the vector. From 2^127 on the result is 2^127, below
    2^-126 it is 0. With levels, the smallest of which is u = 2^(1-s), and blocks of d elements:
    omega = 1/8 + 2 d u^2 / 9, or u sqrt(d) - 1 from d u^2 = 81/16 on; with "max"
    (sqrt(1 + (d - 1) u^2) - 1) / 2, or (d - 1) / (8 d + 10) if that is more. A block with a NaN or
    an infinity then decodes to NaN.

    Args:
        levels: The s of natural dithering, which is 4 bits an element with 7; None for natural
            compression, which is 9 bits and needs no norm.
        norm: Of natural dithering: l2 or max.
        block: Of natural dithering: elements that share a norm.

    Example:
        >>> Natural().wire_bytes(1000)
        1125
        >>> Natural(levels=7).wire_bytes(1024)
        520
    """

    name: ClassVar[str] = "natural"
    wire_id: ClassVar[int] = 11

    levels: Annotated[int, Ge(1), Le(natural_dithering.MOST_LEVELS)] | None = None
    norm: Literal["l2", "max"] = "l2"
    block: Annotated[int, Ge(8), Le(65536), MultipleOf(8)] = 512

    def __post_init__(self) -> None:
        try:
            self._form  # noqa: B018 - it checks itself
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}") from error

    @property
    def block_elems(self) -> int:
        """Elements that share a norm, or whose signs are packed together."""
        return natural.GROUP if self._form is None else self.block

    @property
    def error_feedback(self) -> bool:
        """Unbiased: there is nothing to feed back."""
        return False

    def arrays(self, elems: int) -> tuple[int, int]:
        """Bytes of exponents and of signs; with dithering of float32 norms and of codes."""
        if self._form is None:
            return elems, (elems + 7) // 8
        return 4 * block_count(elems, self.block), self._form.code_bytes(elems)

    def bias(self, elems: int) -> Unbiased:
        """The variance of x between 2^e and 2^(e+1) is at most x^2 / 8, reached at 4/3 2^e.

        With levels and N = 1 it is t (u - t) below u = 2^(1-s). With "l2", n equal elements of
        t = 4 u / 9, beside others that reach 1/8, have 2 n u^2 / 9 more than 1/8; if they alone are
        longer than 1, n of 1 / sqrt(n) have u sqrt(n) - 1. With "max", the largest is exact: the
        others are below u, or alike and above 1/2 (`_above_half`).
        """
        if self.levels is None:
            return Unbiased(0.125 * bounds.ROUNDING, Range(SMALLEST_NORMAL, 2.0**127))
        n, least = min(self.block, max(elems, 1)), 2.0 ** (1 - self.levels)
        range_ = Range(SMALLEST_NORMAL / least, bounds.LARGEST_BLOCK / math.sqrt(n))
        if self.norm == "max":
            middle = _above_half(n - 1) if self.levels > 1 else 0.0
            return Unbiased(
                max(bounds.at_random(n - 1, 1 / least), middle * bounds.ROUNDING), range_
            )
        if self.levels == 1:
            return Unbiased(bounds.of_length(n, 1), range_)
        small = 2 * n * least**2 / 9
        omega = 0.125 + small if small <= 1.125 else least * math.sqrt(n) - 1.0
        return Unbiased(omega * bounds.ROUNDING, range_)

    @property
    def recorded(self) -> bool:
        """All kernels."""
        return True

    @property
    def head_dtype(self) -> npt.DTypeLike:
        """Norms, or exponents."""
        return np.uint8 if self._form is None else np.float32

    @cached_property
    def fused(self) -> Fused:
        """All; but there is no kernel for sums of dithered payloads."""
        own = super().fused
        if self._form is None:
            return own
        assert own.ways is not None
        return replace(own, decode_sum=None, ways=replace(own.ways, total=None))

    @property
    def stochastic(self) -> bool:
        """Always."""
        return True

    def noise(self, draw: Draw) -> Noise:
        """Return the random numbers of an encode."""
        return draw.private_noise(self.wire_id)

    def quantize(
        self, x: Array, parts: Parts, draw: Draw, residual: Array | None, loss_scale: float
    ) -> None:
        """Round."""
        (head, last), form, noise = parts, self._form, self.noise(draw)
        if form is None:
            natural.natural_quantize(
                x, head, last, noise=noise, residual=residual, loss_scale=loss_scale
            )
        else:
            natural_dithering.dither(
                x, last, head, form=form, noise=noise, residual=residual, loss_scale=loss_scale
            )

    def dequantize(self, parts: Parts, out: Array, weight: float, *, add: bool) -> None:
        """Put sign and exponent, or norm and level, together."""
        (head, last), form = parts, self._form
        if form is None:
            natural.natural_dequantize(head, last, out, weight=weight, add=add)
        else:
            natural_dithering.undither(last, head, out, form=form, weight=weight, add=add)

    def dequantize_sum(self, parts: Sequence[Parts], out: Array, weight: float) -> None:
        """Put together and add up, without levels; see `KernelCodec.dequantize_sum`."""
        exponents, signs = parts
        natural.sum_natural(exponents, signs, out, weight=weight)

    @cached_property
    def _form(self) -> natural_dithering.Dithering | None:
        if self.levels is None:
            return None
        return natural_dithering.Dithering(levels=self.levels, block=self.block, norm=self.norm)


def _above_half(others: int) -> float:
    """The relative variance of 1 and m others at x > 1/2, where it is largest.

    It is m (1 - x) (x - 1/2) / (1 + m x^2), whose derivative is 0 at 3 m x^2 + 2 (2 - m) x = 3.
    """
    m = max(others, 1)
    x = (m - 2 + math.sqrt((m - 2) ** 2 + 9 * m)) / (3 * m)
    return others * (1 - x) * (x - 0.5) / (1 + m * x * x)
