"""highbyte: of every float32 the highest byte, which is its sign and most of its exponent."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from compressa.arrays import scratch_tensor
from compressa.codecs import Codec, Contraction, Draw, Range
from compressa.compressor import Granularity

_MIDDLE = 1.6  # of [1, 4): no more than 0.6 of a value off, at either end


@cache
def _values(device: torch.device) -> torch.Tensor:
    """What each of the 256 bytes decodes to; 0 near zero, NaN from 2^127 on."""
    magnitudes = _MIDDLE * torch.exp2(torch.arange(128, dtype=torch.float64) * 2 - 127)
    magnitudes[0], magnitudes[127] = 0.0, torch.nan
    return torch.cat([magnitudes, -magnitudes]).float().to(device)


@dataclass(frozen=True, kw_only=True)
class HighByte(Codec):
    """A quarter of the bytes, without a scale: signs are kept, magnitudes to a power of four.

    Wire format: n bytes, each the sign and the upper seven of eight bits of the exponent.
    Bias: an error of 0.6 |x| at most, a contraction; error feedback sends the rest later.
    """

    name: ClassVar[str] = "highbyte"
    wire_id: ClassVar[int] = 201  # 128 to 255 are left to other packages

    @property
    def granularity(self) -> Granularity:
        """A parameter may be cut anywhere."""
        return Granularity.ELEMENT

    def wire_bytes(self, elems: int) -> int:
        """One for each element."""
        return elems

    def bias(self, elems: int) -> Contraction:
        """Delta is 1 - 0.6^2, less what float32 rounds."""
        return Contraction(0.64 - 1e-6, Range(2.0**-125, 1.7e38))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Take the last of every four bytes, since numbers lie in memory lowest byte first."""
        payload.copy_(x.view(torch.uint8)[3::4])
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Look every byte up, in memory that the thread keeps."""
        self.check(payload, out.numel())  # the length; any byte is valid
        indices = scratch_tensor("highbyte.bytes", out.numel(), torch.int32, out.device)
        values = scratch_tensor("highbyte.values", out.numel(), torch.float32, out.device)
        torch.index_select(_values(out.device), 0, indices.copy_(payload), out=values)
        out.add_(values, alpha=weight)
