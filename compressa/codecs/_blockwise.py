"""What all linear quantisers share: one scale per block, packed integers, one kernel."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from compressa.arrays import as_array
from compressa.codecs._kernel import Array, KernelCodec, Parts
from compressa.codecs.base import Contraction, Draw
from compressa.codecs.fused import Averaging, Fused, Kept
from compressa.errors import ConfigError
from compressa.kernels import blockwise
from compressa.kernels.blockwise_mean import Owned, Packed, average_blockwise
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
    def stochastic(self) -> bool:
        """Whether codes are rounded at random, and so unbiased."""
        return False

    @property
    def block_elems(self) -> int:
        """Elements that share a scale."""
        return self.block

    @property
    def error_feedback(self) -> bool:
        """On for contractions, and for them only."""
        return isinstance(self.bias(1 << 20), Contraction)

    def arrays(self, elems: int) -> tuple[int, ...]:
        """Scales, offsets if there are any, codes."""
        heads = 2 if self.form.statistic == "range" else 1
        scales = 4 * math.ceil(elems / self.block)
        return (*[scales] * heads, self.form.code_bytes(elems))

    @property
    def block_form(self) -> blockwise.Form:
        """That of one."""
        return self.form

    @cached_property
    def fused(self) -> Fused:
        """All that there is, and the average."""
        return replace(super().fused, average=self._average)

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
        """Unpack and add up."""
        scales, *offsets, codes = parts
        blockwise.sum_blockwise(
            codes,
            scales,
            out,
            form=self.form,
            offsets=offsets[0] if offsets else None,
            weight=weight,
        )

    def _average(self, share: Averaging) -> int:
        """Decode, average, encode the mean and decode it, block by block."""
        elems = share.values.numel()
        average_blockwise(
            as_array(share.values),
            [self._packed(payload, elems) for payload in share.sent],
            self._packed(share.payload, elems),
            form=self.form,
            weight=share.weight,
            noise=self.noise(share.draw),
            owned=None if share.kept is None else _owned(share.kept),
        )
        return share.payload.numel()

    def _packed(self, payload: torch.Tensor, elems: int) -> Packed:
        scales, *offsets, codes = self.split(payload, elems)
        return Packed(codes, scales, offsets[0] if offsets else None)

    def _in_block(self, elems: int) -> int:
        """Elements of the largest block."""
        return min(self.block, max(elems, 1))


def _owned(kept: Kept) -> Owned:
    return Owned(
        as_array(kept.residual), as_array(kept.undo), kept.loss_scale, kept.mean_loss_scale
    )
