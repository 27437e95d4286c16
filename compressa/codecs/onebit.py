"""onebit: the scaled sign, EF-signSGD (Karimireddy et al., 2019), per block.

C(x) = (||x||_1 / d) sign(x). The mean magnitude as scale makes it a contraction on every
vector, spiky ones too; ||x||_2 / sqrt(d) would not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Le, MultipleOf

from compressa.arrays import as_array
from compressa.bias import LARGEST, SMALLEST_NORMAL, Range
from compressa.codecs._blockwise_list import decoder_of, encoder_of, goes_at_once
from compressa.codecs.base import Codec, Contraction, Draw, Granularity
from compressa.codecs.fused import Decoder, Encoder, Fused, Item
from compressa.errors import ConfigError
from compressa.kernels import onebit


@dataclass(frozen=True, kw_only=True)
class OneBit(Codec):
    """Per block of d elements: scale = ||x||_1 / d, one sign bit per element.

    Wire format: ceil(n / block) little-endian float32 scales, then per block of length L
    (the last may be shorter) m = ceil(L / 8) bytes; bit j of byte i is the sign of element
    j * m + i, 1 for negative. Bias: a contraction with delta = ||x||_1^2 / (d ||x||_2^2),
    2 / pi on Gaussian data, at least 1 / d. A block with a NaN or an infinity decodes to NaN.

    Args:
        block: Elements that share a scale.

    Example:
        >>> OneBit(block=1024).wire_bytes(1_000_000)
        128908
    """

    name: ClassVar[str] = "onebit"
    wire_id: ClassVar[int] = 5

    block: Annotated[int, Ge(8), Le(1 << 20), MultipleOf(8)] = 1024

    def __post_init__(self) -> None:
        if self.block < 8 or self.block % 8:
            raise ConfigError(
                f"onebit: block must be a multiple of 8 and at least 8, got {self.block}"
            )

    @property
    def granularity(self) -> Granularity:
        """A block shares one scale."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """Elements that share a scale."""
        return self.block

    @property
    def takes_half(self) -> bool:
        """The kernel widens."""
        return True

    def wire_bytes(self, elems: int) -> int:
        """Four bytes per block, and a bit per element."""
        return sum(self.sections(elems))

    def sections(self, elems: int) -> tuple[int, int]:
        """Scales, signs."""
        return 4 * self._blocks(elems), onebit.sign_bytes(elems, self.block)

    def bias(self, elems: int) -> Contraction:
        """Delta >= 1 / d, reached by a vector with a single non-zero element."""
        block = min(self.block, max(elems, 1))
        return Contraction((1 - 1e-5) / block, Range(block * SMALLEST_NORMAL, LARGEST))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Signs and mean magnitudes."""
        scales, bits = self._parts(payload, x.numel())
        onebit.sign_quantize(as_array(x), bits, scales, block=self.block)
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Unpack, multiply and accumulate in one pass."""
        self._dequantize(payload, out, weight, add=True)

    @cached_property
    def fused(self) -> Fused:
        """All but the average."""
        return Fused(
            encode_feedback=self._encode_feedback,
            decode=self._decode,
            decode_sum=self._decode_sum,
            encoder=self._encoder,
            decoder=self._decoder,
        )

    def _encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float,
    ) -> int:
        """Add the residual, take the signs and keep the new residual, block by block."""
        scales, bits = self._parts(payload, x.numel())
        onebit.sign_quantize(
            as_array(x),
            bits,
            scales,
            block=self.block,
            residual=as_array(residual),
            loss_scale=scale,
        )
        return payload.numel()

    def _decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Unpack the signs and multiply by the scales."""
        self._dequantize(payload, out, 1.0, add=False)

    def _decode_sum(
        self, payloads: Sequence[tuple[torch.Tensor, Draw]], out: torch.Tensor, weight: float
    ) -> None:
        """Unpack and add up all payloads in one pass."""
        elems = out.numel()
        parts = [self._checked_parts(payload, elems) for payload, _ in payloads]
        onebit.sum_signs(
            [bits for _, bits in parts],
            [scales for scales, _ in parts],
            as_array(out),
            block=self.block,
            weight=weight,
        )

    def _encoder(self, items: Sequence[Item], payload: torch.Tensor) -> Encoder | None:
        """In one call, on a GPU by one launch."""
        if not goes_at_once(items):
            return None
        form = onebit.SignForm(block=self.block)
        return encoder_of(self, items, payload, form, lambda draw: None)

    def _decoder(self, items: Sequence[Item], payload_bytes: int) -> Decoder | None:
        """In one call, on a GPU by one launch."""
        if not goes_at_once(items):
            return None
        return decoder_of(self, items, payload_bytes, onebit.SignForm(block=self.block))

    def _dequantize(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, *, add: bool
    ) -> None:
        scales, bits = self._checked_parts(payload, out.numel())
        onebit.sign_dequantize(
            bits, scales, as_array(out), block=self.block, weight=weight, add=add
        )

    def _blocks(self, elems: int) -> int:
        return math.ceil(elems / self.block)

    def _checked_parts(
        self, payload: torch.Tensor, elems: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        self.check(payload, elems)
        return self._parts(payload, elems)

    def _parts(
        self, payload: torch.Tensor, elems: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        raw: npt.NDArray[np.uint8] = as_array(payload)
        split = 4 * self._blocks(elems)
        return raw[:split].view(np.float32), raw[split:]
