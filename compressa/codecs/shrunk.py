"""Shrunk: an unbiased quantiser made a contraction, so that error feedback can go round it.

    C'(x) = C(x) / (1 + omega)

If E C(x) = x and E||C(x) - x||^2 <= omega ||x||^2, then E||C'(x) - x||^2 <= omega / (1 + omega)
||x||^2: the error is shorter than x. Unscaled, it may be longer, and a residual would add it up
(Beznosikov et al., 2020; Richtarik et al., 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from compressa.arrays import as_array, scratch_tensor, surely_finite
from compressa.bias import TYPICAL_ELEMS
from compressa.codecs.base import (
    Bounded,
    Codec,
    Contraction,
    Draw,
    Fixed,
    Range,
    Reduction,
    Unbiased,
)
from compressa.codecs.fused import Fused
from compressa.compressor import Wrapper
from compressa.errors import ConfigError
from compressa.kernels.feedback import absorb_residual


@dataclass(frozen=True, kw_only=True)
class Shrunk(Codec, Wrapper):
    """The payload of an unbiased codec; what it decodes to, times 1 / (1 + omega).

    Wire format: the codec's.

    Bias: a contraction, delta = 1 / (1 + omega), by the codec's omega for the length of the vector.

    Args:
        codec: What encodes; it must be unbiased.

    Raises:
        ConfigError: The codec is not unbiased.

    Example:
        >>> from compressa.codecs import RandomK
        >>> Shrunk(codec=RandomK(density=0.25, unbiased=True)).bias(1000)
        Contraction(delta=0.25)
    """

    name: ClassVar[str] = "shrunk"
    wire_id: ClassVar[int] = 24
    wraps: ClassVar[str] = "codec"

    codec: Codec

    def __post_init__(self) -> None:
        if not isinstance(self.codec.bias(1 << 20), Unbiased):
            raise ConfigError(
                f"{self.codec.name}: only an unbiased quantiser can be scaled by 1 / (1 + omega), "
                "and this form is not one"
            )

    @property
    def size(self) -> Fixed | Bounded:
        """The codec's."""
        return self.codec.size

    @property
    def reduce(self) -> Reduction | None:
        """The codec's: what is decoded is scaled, not what is summed."""
        return self.codec.reduce

    @property
    def takes_half(self) -> bool:
        """The codec's."""
        return self.codec.takes_half

    def wire_bytes(self, elems: int) -> int:
        """The codec's."""
        return self.codec.wire_bytes(elems)

    def bias(self, elems: int) -> Contraction:
        """A contraction."""
        gain, inner = self._gain(elems), self.codec.bias(elems).range
        return Contraction(gain, Range(inner.smallest / gain, inner.largest))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Encode as the codec does."""
        return self.codec.encode(x, payload, draw)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Decode and accumulate with a smaller weight."""
        self.codec.decode_add(payload, out, weight * self._gain(out.numel()), draw)

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        """See `Codec.check_content`: what `codec` checks."""
        self.codec.check(payload, elems)

    @cached_property
    def fused(self) -> Fused:
        """Feedback in less memory, and decoding as the codec does it."""
        return Fused(encode_feedback=self._encode_feedback, decode=self._decode)

    def _encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        loss_scale: float,
    ) -> int:
        """Encode with the residual, in memory that the thread keeps."""
        corrected, kept, decoded = (
            scratch_tensor(f"shrunk {what}", x.numel(), torch.float32, x.device)
            for what in ("corrected", "kept", "decoded")
        )
        arrays = as_array(corrected.copy_(x)), as_array(residual), as_array(kept)
        absorb_residual(*arrays, loss_scale)
        length = self.encode(corrected, payload, draw)
        self.decode(payload[:length], decoded, draw)
        if not surely_finite(corrected):
            kept = torch.where(corrected.isfinite().all(), kept, residual)
        error = corrected.sub_(decoded).mul_(1.0 / loss_scale)
        if surely_finite(error):
            residual.copy_(error)
        else:
            torch.where(error.isfinite(), error, kept, out=residual)
        return length

    def _decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Decode and scale."""
        self.codec.decode(payload, out, draw)
        out.mul_(self._gain(out.numel()))

    def _gain(self, elems: int) -> float:
        bias = self.codec.bias(elems)
        return 1.0 / (1.0 + bias.omega) if isinstance(bias, Unbiased) else 1.0


def contraction_of(codec: Codec) -> Codec:
    """Return what a residual or an estimate can follow: a codec, shrunk if it is unbiased."""
    return Shrunk(codec=codec) if isinstance(codec.bias(TYPICAL_ELEMS), Unbiased) else codec
