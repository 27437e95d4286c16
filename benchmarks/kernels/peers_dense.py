"""Peers of quantisers: the same arithmetic in plain torch operations, an array at a time.

This is how PyTorch's hooks and GRACE are written: each line below is a pass over memory, and most
make a new array. Where that costs nothing, results go to memory that is there already. Codes of
four and two bits are packed; signs and levels are left a byte each, as GRACE leaves them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import torch

from benchmarks.kernels.cases import SUMMED
from benchmarks.kernels.operands import Operands
from benchmarks.kernels.peers import Operate, TorchPeer

_LARGEST_E4M3 = 448.0
_QSGD_LEVELS = 64
_TERNGRAD_CLIP = 2.5
_EXPONENT_AND_SIGN = -(1 << 23)
_MANTISSA = 1 << 23

Payload = tuple[torch.Tensor, ...]


def whole_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """Leave out a last block that is not full: a ten-thousandth of the work at most."""
    block = min(block, x.numel())
    return x[: x.numel() // block * block].view(-1, block)


class Format(ABC):
    """Codes and what they are multiplied with; and the peers that make and read them."""

    def rows(self, x: torch.Tensor, codec: Any) -> torch.Tensor:
        """Return what is encoded, a block in a row."""
        return whole_blocks(x, codec.block)

    @abstractmethod
    def encode(self, p: torch.Tensor) -> Payload:
        """Return codes, and scales if there are any."""

    @abstractmethod
    def decode(self, *payload: torch.Tensor) -> torch.Tensor:
        """Return what a payload stands for."""

    def sent(self, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode; return the codes, and what they stand for."""
        payload = self.encode(p)
        return payload[0], self.decode(*payload)

    @property
    def plain(self) -> TorchPeer:
        """Encode."""
        return TorchPeer(lambda _, codec: lambda x: self.encode(self.rows(x, codec))[0])

    @property
    def feedback(self) -> TorchPeer:
        """The same of gradient and residual, and the new residual."""

        def begin(operands: Operands, codec: Any) -> Operate:
            residual = self.rows(operands.residual, codec)

            def operate(x: torch.Tensor) -> torch.Tensor:
                p = self.rows(x, codec) + residual
                codes, sent = self.sent(p)
                torch.sub(p, sent, out=residual)
                return codes

            return operate

        return TorchPeer(begin)

    @property
    def addition(self) -> TorchPeer:
        """Decode and add."""

        def begin(operands: Operands, codec: Any) -> Operate:
            payload = self.encode(self.rows(operands.gradient, codec))
            out = self.rows(operands.out, codec)
            return lambda _: out.add_(self.decode(*payload), alpha=0.5)

        return TorchPeer(begin)

    @property
    def sum(self) -> TorchPeer:
        """Decode and add; again for every payload."""

        def begin(operands: Operands, codec: Any) -> Operate:
            turns, out = operands.turns(), self.rows(operands.out, codec)
            payloads = [self.encode(self.rows(next(turns)[0], codec)) for _ in range(SUMMED)]

            def operate(_: torch.Tensor) -> torch.Tensor:
                out.zero_()
                for payload in payloads:
                    out.add_(self.decode(*payload), alpha=1 / SUMMED)
                return out

            return operate

        return TorchPeer(begin)


@final
class Cast(Format):
    """One `Tensor.to`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def rows(self, x: torch.Tensor, codec: Any) -> torch.Tensor:
        """There are no blocks."""
        return x

    def encode(self, p: torch.Tensor) -> Payload:
        """Cast."""
        return (p.to(self._dtype, copy=True),)

    def decode(self, *payload: torch.Tensor) -> torch.Tensor:
        """Adding casts back."""
        return payload[0]


@final
class Blockwise(Format):
    """Scale by the block's maximum, round, pack several codes in a byte."""

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def encode(self, p: torch.Tensor) -> Payload:
        """Quantise and pack."""
        q, scales = self._quantize(p.float())
        return self._pack(q), scales

    def decode(self, *payload: torch.Tensor) -> torch.Tensor:
        """Unpack and multiply."""
        packed, scales = payload
        return self._unpack(packed).mul_(scales)

    def sent(self, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What was not packed yet need not be unpacked."""
        q, scales = self._quantize(p)
        return self._pack(q), q.mul_(scales)

    def _quantize(self, p: torch.Tensor) -> Payload:
        scales = p.abs().amax(dim=1, keepdim=True) / (2 ** (self._bits - 1) - 1)
        return (p / scales).round_(), scales

    def _pack(self, q: torch.Tensor) -> torch.Tensor:
        per_byte = 8 // self._bits
        if per_byte == 1:
            return q.to(torch.int8)
        parts = (q + 2 ** (self._bits - 1)).to(torch.uint8).chunk(per_byte, dim=1)
        packed: torch.Tensor = parts[0]
        for i, part in enumerate(parts[1:], 1):
            packed = packed | (part << self._bits * i)
        return packed

    def _unpack(self, packed: torch.Tensor) -> torch.Tensor:
        if self._bits == 8:
            return packed.float()
        mask, middle = (1 << self._bits) - 1, 2 ** (self._bits - 1)
        parts = [(packed >> self._bits * i & mask) for i in range(8 // self._bits)]
        codes: torch.Tensor = torch.cat(parts, dim=1).float() - middle
        return codes


@final
class Fp8(Format):
    """A cast to e4m3 over the block's scale."""

    def encode(self, p: torch.Tensor) -> Payload:
        """Scale and cast."""
        scales = p.abs().amax(dim=1, keepdim=True) / _LARGEST_E4M3
        return (p / scales).to(torch.float8_e4m3fn), scales

    def decode(self, *payload: torch.Tensor) -> torch.Tensor:
        """Cast back and multiply."""
        codes, scales = payload
        return codes.float().mul_(scales)


@final
class OneBit(Format):
    """Signs and mean magnitudes."""

    def encode(self, p: torch.Tensor) -> Payload:
        """Take signs and means."""
        return (p >= 0).to(torch.uint8), p.abs().mean(dim=1, keepdim=True)

    def decode(self, *payload: torch.Tensor) -> torch.Tensor:
        """Signs times scales."""
        signs, scales = payload
        return signs.float().mul_(2).sub_(1).mul_(scales)


@TorchPeer
def qsgd(_: Operands, __: Any) -> Operate:
    """Levels of |x| / norm, up or down at random."""

    def operate(x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        level = x.abs() * (_QSGD_LEVELS / x.norm())
        down = level.floor()
        up = torch.rand_like(x) < level - down
        levels: torch.Tensor = (down + up) * x.sign()
        return levels.to(torch.int8)

    return operate


@TorchPeer
def terngrad(_: Operands, __: Any) -> Operate:
    """Clip at 2.5 sigma; the sign, or nothing, at random."""

    def operate(x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        limit = _TERNGRAD_CLIP * x.std()
        x = x.clamp(-limit, limit)
        magnitude = x.abs()
        kept = torch.rand_like(x) * magnitude.max() < magnitude
        return (x.sign() * kept).to(torch.int8)

    return operate


@TorchPeer
def natural(_: Operands, __: Any) -> Operate:
    """Add random bits to the mantissa and cut it off; sign and exponent stay."""

    def operate(x: torch.Tensor) -> torch.Tensor:
        bits = x.float().view(torch.int32)
        noise = torch.randint_like(bits, _MANTISSA)
        kept: torch.Tensor = ((bits + noise) & _EXPONENT_AND_SIGN) >> 23
        return kept

    return operate
