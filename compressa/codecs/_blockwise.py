"""What int8 and int4 share: a linear, symmetric quantiser with one scale per block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from compressa.codecs.base import Codec, Contraction, Draw, Granularity
from compressa.errors import ConfigError
from compressa.kernels import blockwise


@dataclass(frozen=True, kw_only=True)
class Blockwise(Codec):
    """Scales first (float32, one per block), then the packed codes.

    Subclasses give the number of bits and the block; everything else follows.
    """

    bits: ClassVar[int]
    block: int

    def __post_init__(self) -> None:
        if self.block < 8 or self.block % 2:
            raise ConfigError(
                f"{self.name}: block must be an even number of at least 8, got {self.block}"
            )

    @property
    def granularity(self) -> Granularity:
        """A block shares one scale."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """Elements that share a scale."""
        return self.block

    def wire_bytes(self, elems: int) -> int:
        """Four bytes per block, and the packed codes."""
        return 4 * self._blocks(elems) + blockwise.code_bytes(elems, self.bits, self.block)

    def bias(self, elems: int) -> Contraction:
        """The largest element is exact, the others err by half a unit at most."""
        block = min(self.block, max(elems, 1))
        levels = 2 ** (self.bits - 1) - 1
        # The two halves of a rounding in float32 are allowed for by the last factor.
        nearest = 1.0 - (block - 1) / (4.0 * levels**2) * (1 + 1e-5)
        return Contraction(max(nearest, (1 - 1e-5) / block))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Quantise to nearest."""
        scales, codes = self._parts(payload, x.numel())
        blockwise.quantize_blockwise(x.numpy(), codes, scales, bits=self.bits, block=self.block)
        return payload.numel()

    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        """Add the residual, quantise, pack and keep the new residual in one pass."""
        scales, codes = self._parts(payload, x.numel())
        blockwise.quantize_blockwise(
            x.numpy(),
            codes,
            scales,
            bits=self.bits,
            block=self.block,
            residual=residual.numpy(),
            scale=scale,
        )
        return payload.numel()

    def decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Unpack and multiply by the scales."""
        self._dequantize(payload, out, 1.0, add=False)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, multiply and accumulate in one pass."""
        self._dequantize(payload, out, weight, add=True)

    def _dequantize(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, *, add: bool
    ) -> None:
        self.check(payload, out.numel())
        scales, codes = self._parts(payload, out.numel())
        blockwise.dequantize_blockwise(
            codes, scales, out.numpy(), bits=self.bits, block=self.block, weight=weight, add=add
        )

    def _blocks(self, elems: int) -> int:
        return math.ceil(elems / self.block)

    def _parts(
        self, payload: torch.Tensor, elems: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        raw: npt.NDArray[np.uint8] = payload.numpy()
        split = 4 * self._blocks(elems)
        return raw[:split].view(np.float32), raw[split:]
