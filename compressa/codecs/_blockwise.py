"""What all linear quantisers share: one scale per block, packed integers, one kernel."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from compressa.bias import SMALLEST_NORMAL, Bias, Biased, Contraction, Range, Unbiased
from compressa.codecs import bounds
from compressa.codecs._kernel import Array, KernelCodec, Parts
from compressa.codecs.base import Draw
from compressa.errors import ConfigError
from compressa.kernels import blockwise
from compressa.kernels.philox import Noise


@dataclass(frozen=True, kw_only=True)
class Blockwise(KernelCodec):
    """Scales first (float32, one per block), offsets if there are any, then the packed codes.

    Subclasses give the form of the codes and say how they round; everything else follows.
    """

    block: int

    def __post_init__(self) -> None:
        try:
            self.form  # noqa: B018 - it checks itself
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}") from error

    @cached_property
    def form(self) -> blockwise.Form:
        """What the codes look like."""
        return self._make_form()

    @abstractmethod
    def _make_form(self) -> blockwise.Form:
        """Build the form from the hyper-parameters; raises ValueError if there is none."""

    @property
    def block_elems(self) -> int:
        """Elements that share a scale."""
        return self.block

    @property
    def error_feedback(self) -> bool:
        """On for contractions, and for them only."""
        return isinstance(self.bias(1 << 20), Contraction)

    def arrays(self, elems: int) -> tuple[int, ...]:
        """Bytes of float32 scales, of offsets if there are any, and of codes."""
        heads = 2 if self.form.statistic == "range" else 1
        scales = 4 * math.ceil(elems / self.block)
        return (*[scales] * heads, self.form.code_bytes(elems))

    @property
    def block_form(self) -> blockwise.Form:
        """That of one."""
        return self.form

    def noise(self, draw: Draw) -> Noise | None:
        """Return the random numbers of an encode, if it rounds at random."""
        return draw.private_noise(self.wire_id) if self.stochastic else None

    def quantize(
        self, x: Array, parts: Parts, draw: Draw, residual: Array | None, loss_scale: float
    ) -> None:
        """Quantise block by block."""
        scales, *offsets, codes = parts
        blockwise.quantize_blockwise(
            x,
            codes,
            scales,
            form=self.form,
            offsets=offsets[0] if offsets else None,
            noise=self.noise(draw),
            residual=residual,
            loss_scale=loss_scale,
        )

    def dequantize(self, parts: Parts, out: Array, weight: float, *, add: bool) -> None:
        """Unpack, and multiply by the scales."""
        scales, *offsets, codes = parts
        blockwise.dequantize_blockwise(
            codes,
            scales,
            out,
            form=self.form,
            offsets=offsets[0] if offsets else None,
            weight=weight,
            add=add,
        )

    def dequantize_sum(self, parts: Sequence[Parts], out: Array, weight: float) -> None:
        """Unpack and add up; see `KernelCodec.dequantize_sum`."""
        scales, *offsets, codes = parts
        blockwise.sum_blockwise(
            codes,
            scales,
            out,
            form=self.form,
            offsets=offsets[0] if offsets else None,
            weight=weight,
        )

    def _in_block(self, elems: int) -> int:
        """Elements of the largest block."""
        return min(self.block, max(elems, 1))


@dataclass(frozen=True, kw_only=True)
class Linear(Blockwise):
    """What int8, int4 and int2 share: integers of `bits` bits times the block's scale.

    The block's extremes give the scale, and rounding is to nearest or stochastic.
    """

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
