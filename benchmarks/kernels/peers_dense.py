"""Peers of quantisers: the same arithmetic in plain torch operations, an array at a time.

This is how PyTorch's hooks and GRACE are written: each line below is a pass over memory, and most
make a new array. Where that costs nothing, results go to memory that is there already. Codes of
four and two bits are packed; signs and levels are left a byte each, as GRACE leaves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    """Return a vector's whole blocks as a view of shape (blocks, block).

    A last block that is not full is left out: a ten-thousandth of the work at most.
    """
    block = min(block, x.numel())
    return x[: x.numel() // block * block].view(-1, block)


def _whole(x: torch.Tensor, codec: Any) -> torch.Tensor:
    return x


def _blocks(x: torch.Tensor, codec: Any) -> torch.Tensor:
    return whole_blocks(x, codec.block)


@dataclass(frozen=True)
class Format:
    """Codes and what they are multiplied with; and the peers that make and read them.

    Attributes:
        encode: Returns codes of float32 values, and scales if there are any.
        decode: Returns what a payload stands for, float32 or what can be added to it.
        rows: Returns what is encoded, a block in a row, of a vector and the case's codec.
        encode_sent: Encodes, and returns the codes and what they stand for; None for one after the
            other.
    """

    encode: Callable[[torch.Tensor], Payload]
    decode: Callable[..., torch.Tensor]
    rows: Callable[[torch.Tensor, Any], torch.Tensor] = _blocks
    encode_sent: Callable[[torch.Tensor], Payload] | None = None

    @property
    def plain(self) -> TorchPeer:
        """Encode."""
        return TorchPeer(lambda _, codec: lambda x: self.encode(self.rows(x, codec))[0])

    @property
    def feedback(self) -> TorchPeer:
        """The same of gradient and residual, and the new residual."""
        encode_sent = self.encode_sent or self._one_after_the_other

        def begin(operands: Operands, codec: Any) -> Operate:
            residual = self.rows(operands.residual, codec)

            def operate(x: torch.Tensor) -> torch.Tensor:
                p = self.rows(x, codec) + residual
                codes, sent = encode_sent(p)
                torch.sub(p, sent, out=residual)
                return codes

            return operate

        return TorchPeer(begin)

    def _one_after_the_other(self, p: torch.Tensor) -> Payload:
        payload = self.encode(p)
        return payload[0], self.decode(*payload)

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


def cast(dtype: torch.dtype) -> Format:
    """One `Tensor.to`; adding casts back."""
    return Format(lambda p: (p.to(dtype, copy=True),), lambda codes: codes, _whole)


def blockwise(bits: int) -> Format:
    """Scale by the block's maximum, round, pack several codes in a byte."""

    def quantize(p: torch.Tensor) -> Payload:
        scales = p.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
        return (p / scales).round_(), scales

    def encode(p: torch.Tensor) -> Payload:
        q, scales = quantize(p.float())
        return _pack(q, bits), scales

    def decode(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return _unpack(packed, bits).mul_(scales)

    def encode_sent(p: torch.Tensor) -> Payload:
        """What was not packed yet need not be unpacked."""
        q, scales = quantize(p)
        return _pack(q, bits), q.mul_(scales)

    return Format(encode, decode, encode_sent=encode_sent)


def _pack(q: torch.Tensor, bits: int) -> torch.Tensor:
    per_byte = 8 // bits
    if per_byte == 1:
        return q.to(torch.int8)
    parts = (q + 2 ** (bits - 1)).to(torch.uint8).chunk(per_byte, dim=1)
    packed: torch.Tensor = parts[0]
    for i, part in enumerate(parts[1:], 1):
        packed = packed | (part << bits * i)
    return packed


def _unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    if bits == 8:
        return packed.float()
    mask, middle = (1 << bits) - 1, 2 ** (bits - 1)
    parts = [(packed >> bits * i & mask) for i in range(8 // bits)]
    codes: torch.Tensor = torch.cat(parts, dim=1).float() - middle
    return codes


def _to_e4m3(p: torch.Tensor) -> Payload:
    scales = p.abs().amax(dim=1, keepdim=True) / _LARGEST_E4M3
    return (p / scales).to(torch.float8_e4m3fn), scales


FP8 = Format(_to_e4m3, lambda codes, scales: codes.float().mul_(scales))
"""A cast to e4m3 over the block's scale."""

ONE_BIT = Format(
    lambda p: ((p >= 0).to(torch.uint8), p.abs().mean(dim=1, keepdim=True)),
    lambda signs, scales: signs.float().mul_(2).sub_(1).mul_(scales),
)
"""Signs and mean magnitudes."""


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
