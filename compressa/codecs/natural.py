"""natural: stochastic rounding to powers of two (Horvath et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from compressa.codecs.base import Codec, Draw, Granularity, Unbiased
from compressa.kernels import natural


@dataclass(frozen=True, kw_only=True)
class Natural(Codec):
    """|x| = 2^e (1 + f) becomes 2^(e+1) with probability f, else 2^e; the sign stays.

    Wire format: n bytes, the biased exponents as in float32 (0 for 0, 255 for what is not finite);
    then ceil(n / 8) bytes of signs: in each group of 1024 elements (the last may be shorter), with
    m bytes, bit j of byte i is the sign of element j * m + i, 1 for negative. Bias: unbiased with
    omega = 1/8, whatever the vector. From 2^127 on the result is 2^127, below 2^-126 it is 0.

    Example:
        >>> Natural().wire_bytes(1000)
        1125
    """

    name: ClassVar[str] = "natural"
    wire_id: ClassVar[int] = 11

    @property
    def granularity(self) -> Granularity:
        """Elements are independent; their signs are packed in groups."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """Elements whose signs are packed together."""
        return natural.GROUP

    @property
    def error_feedback(self) -> bool:
        """Unbiased: there is nothing to feed back."""
        return False

    def wire_bytes(self, elems: int) -> int:
        """Nine bits per element."""
        return elems + (elems + 7) // 8

    def bias(self, elems: int) -> Unbiased:
        """Reached by a vector of values 4/3 times a power of two."""
        return Unbiased(0.125 * (1 + 1e-5))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Round."""
        exponents, signs = self._parts(payload, x.numel())
        noise = draw.private_noise(self.wire_id)
        natural.natural_quantize(x.numpy(), exponents, signs, noise=noise)
        return payload.numel()

    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        """Add the residual, round and keep the new residual in one pass."""
        exponents, signs = self._parts(payload, x.numel())
        noise = draw.private_noise(self.wire_id)
        natural.natural_quantize(
            x.numpy(), exponents, signs, noise=noise, residual=residual.numpy(), scale=scale
        )
        return payload.numel()

    def decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Put sign and exponent together."""
        self.check(payload, out.numel())
        exponents, signs = self._parts(payload, out.numel())
        natural.natural_dequantize(exponents, signs, out.numpy())

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """The same, multiplied and accumulated in one pass."""
        self.check(payload, out.numel())
        exponents, signs = self._parts(payload, out.numel())
        natural.natural_dequantize(exponents, signs, out.numpy(), weight=weight, add=True)

    @staticmethod
    def _parts(
        payload: torch.Tensor, elems: int
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        raw: npt.NDArray[np.uint8] = payload.numpy()
        return raw[:elems], raw[elems:]
