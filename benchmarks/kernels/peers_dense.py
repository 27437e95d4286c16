"""Peers of quantisers: the same arithmetic in plain torch operations, an array at a time.

This is how PyTorch's hooks and GRACE are written: each line below is a pass over memory, and most
make a new array. Where that costs nothing, results go to memory that is there already. Codes of
four and two bits are packed; signs and levels are left a byte each, as GRACE leaves them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from benchmarks.kernels.cases import SUMMED
from benchmarks.kernels.operands import Operands
from benchmarks.kernels.peers_torch import Operate, TorchPeer
from benchmarks.timing import Call

_LARGEST_E4M3 = 448.0
_QSGD_LEVELS = 64
_TERNGRAD_CLIP = 2.5
_EXPONENT_AND_SIGN = -(1 << 23)
_MANTISSA = 1 << 23


def cast(dtype: torch.dtype) -> TorchPeer:
    """One `Tensor.to`."""
    return TorchPeer(lambda operands, _: lambda x: x.to(dtype, copy=True))


def cast_feedback(dtype: torch.dtype) -> TorchPeer:
    """The same of gradient and residual, and the new residual."""

    def begin(operands: Operands, _: Any) -> Operate:
        residual = operands.residual

        def operate(x: torch.Tensor) -> torch.Tensor:
            p = x + residual
            sent = p.to(dtype)
            torch.sub(p, sent, out=residual)
            return sent

        return operate

    return TorchPeer(begin)


def _whole_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """Leave out a last block that is not full: a ten-thousandth of the work at most."""
    block = min(block, x.numel())
    return x[: x.numel() // block * block].view(-1, block)


def _pack(q: torch.Tensor, bits: int) -> torch.Tensor:
    """Put several codes in a byte."""
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


def _quantize(p: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    units = p.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (p / units).round_(), units


def blockwise(bits: int) -> TorchPeer:
    """Scale by the block's maximum, round, pack."""

    def begin(_: Operands, codec: Any) -> Operate:
        def operate(x: torch.Tensor) -> torch.Tensor:
            q, _ = _quantize(_whole_blocks(x, codec.block).float(), bits)
            return _pack(q, bits)

        return operate

    return TorchPeer(begin)


def blockwise_feedback(bits: int) -> TorchPeer:
    """The same of gradient and residual, and the new residual."""

    def begin(operands: Operands, codec: Any) -> Operate:
        residual = _whole_blocks(operands.residual, codec.block)

        def operate(x: torch.Tensor) -> torch.Tensor:
            p = _whole_blocks(x, codec.block) + residual
            q, units = _quantize(p, bits)
            packed = _pack(q, bits)
            torch.sub(p, q.mul_(units), out=residual)
            return packed

        return operate

    return TorchPeer(begin)


def blockwise_decode(bits: int) -> TorchPeer:
    """Unpack, multiply, add."""

    def begin(operands: Operands, codec: Any) -> Operate:
        q, units = _quantize(_whole_blocks(operands.gradient, codec.block), bits)
        packed, out = _pack(q, bits), _whole_blocks(operands.out, codec.block)
        return lambda _: out.add_(_unpack(packed, bits).mul_(units), alpha=0.5)

    return TorchPeer(begin)


def blockwise_sum(bits: int) -> TorchPeer:
    """Unpack, multiply, add; again for every payload."""

    def begin(operands: Operands, codec: Any) -> Operate:
        codes = []
        for x in _summands(operands):
            q, units = _quantize(_whole_blocks(x, codec.block), bits)
            codes.append((_pack(q, bits), units))
        out = _whole_blocks(operands.out, codec.block)

        def operate(_: torch.Tensor) -> torch.Tensor:
            out.zero_()
            for packed, units in codes:
                out.add_(_unpack(packed, bits).mul_(units), alpha=1 / SUMMED)
            return out

        return operate

    return TorchPeer(begin)


def cast_sum(dtype: torch.dtype) -> TorchPeer:
    """Add one payload after the other."""

    def begin(operands: Operands, _: Any) -> Operate:
        payloads, out = [x.to(dtype) for x in _summands(operands)], operands.out

        def operate(_: torch.Tensor) -> torch.Tensor:
            out.zero_()
            for payload in payloads:
                out.add_(payload, alpha=1 / SUMMED)
            return out

        return operate

    return TorchPeer(begin)


def _summands(operands: Operands) -> list[torch.Tensor]:
    turns = operands.turns()
    return [next(turns)[0] for _ in range(SUMMED)]


@TorchPeer
def fp8_feedback(operands: Operands, codec: Any) -> Operate:
    """A cast to e4m3 of gradient and residual over the block's scale, and the new residual."""
    residual = _whole_blocks(operands.residual, codec.block)

    def operate(x: torch.Tensor) -> torch.Tensor:
        p = _whole_blocks(x, codec.block) + residual
        units = p.abs().amax(dim=1, keepdim=True) / _LARGEST_E4M3
        cast = (p / units).to(torch.float8_e4m3fn)
        torch.sub(p, cast.float().mul_(units), out=residual)
        return cast

    return operate


@TorchPeer
def onebit_feedback(operands: Operands, codec: Any) -> Operate:
    """Signs and mean magnitudes of gradient and residual, and the new residual."""
    residual = _whole_blocks(operands.residual, codec.block)

    def operate(x: torch.Tensor) -> torch.Tensor:
        p = _whole_blocks(x, codec.block) + residual
        scales = p.abs().mean(dim=1, keepdim=True)
        signs = (p >= 0).to(torch.uint8)
        torch.sub(p, _signed(signs).mul_(scales), out=residual)
        return signs

    return operate


@TorchPeer
def onebit_decode(operands: Operands, codec: Any) -> Operate:
    """Signs times scales, added."""
    blocks = _whole_blocks(operands.gradient, codec.block)
    signs, scales = (blocks >= 0).to(torch.uint8), blocks.abs().mean(dim=1, keepdim=True)
    out = _whole_blocks(operands.out, codec.block)
    return lambda _: out.add_(_signed(signs).mul_(scales), alpha=0.5)


@TorchPeer
def onebit_sum(operands: Operands, codec: Any) -> Operate:
    """Signs times scales, added; again for every payload."""
    blocks = [_whole_blocks(x, codec.block) for x in _summands(operands)]
    payloads = [((x >= 0).to(torch.uint8), x.abs().mean(dim=1, keepdim=True)) for x in blocks]
    out = _whole_blocks(operands.out, codec.block)

    def operate(_: torch.Tensor) -> torch.Tensor:
        out.zero_()
        for signs, scales in payloads:
            out.add_(_signed(signs).mul_(scales), alpha=1 / SUMMED)
        return out

    return operate


def _signed(signs: torch.Tensor) -> torch.Tensor:
    return signs.float().mul_(2).sub_(1)


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


def thc_feedback(operands: Operands, compressor: Any) -> Call:
    """Rotate by random signs and Hadamard, round to the table at random, and all of it back."""
    book, random = compressor.book, torch.Generator().manual_seed(0)
    chunk = 1 << (min(book.chunk, operands.elems).bit_length() - 1)
    turns, residual = operands.turns(), _whole_blocks(operands.residual, chunk)
    table = torch.tensor(book.table, dtype=torch.float32)
    signs = torch.randint(0, 2, (chunk,), generator=random) * 2.0 - 1

    def call() -> torch.Tensor:
        p = _whole_blocks(next(turns)[0], chunk) + residual
        reach = p.norm(dim=1, keepdim=True) * (book.clip / math.sqrt(chunk))
        v = _hadamard(p * signs) / (reach * math.sqrt(chunk))
        v = ((v + 1) * (book.levels / 2)).clamp_(0, book.levels)
        below = (torch.bucketize(v, table, right=True) - 1).clamp_(max=len(table) - 2)
        low, high = table[below], table[below + 1]
        codes = below + (torch.rand(v.shape, generator=random) < (v - low) / (high - low))
        mean = (table[codes] * (2 / book.levels) - 1) * (reach / math.sqrt(chunk))
        mean = _hadamard(mean) * signs
        torch.sub(p, mean, out=residual)
        return mean

    return call


def _hadamard(x: torch.Tensor) -> torch.Tensor:
    """Butterflies over the last dimension, a power of two; not normalised."""
    rows, chunk = x.shape
    half = 1
    while half < chunk:
        pairs = x.view(rows, -1, 2, half)
        x = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2)
        half *= 2
    return x.view(rows, chunk)
