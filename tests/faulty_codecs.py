"""int8, onebit and others with one fault each; each class is named after its fault."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from compressa.codecs import Bf16, Codec, Contraction, Draw, Int8, OneBit, RandomK, TopK, Unbiased
from compressa.errors import PayloadError


@dataclass(frozen=True, kw_only=True)
class FaultyInt8(Int8):
    """int8 with small blocks, to be broken."""

    block: int = 32

    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        # The general way, so that a fault in encode or decode shows here too.
        return Codec.encode_feedback(self, x, residual, payload, draw, scale)


class DropsOneElement(FaultyInt8):
    def _dequantize(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, *, add: bool
    ) -> None:
        last = out[-1:].clone()
        super()._dequantize(payload, out, weight, add=add)
        if out.numel() > 1:
            out[-1:] = last if add else 0.0


class DropsOneElementFromDecodeAdd(FaultyInt8):
    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        last = out[-1:].clone()
        super().decode_add(payload, out, weight, draw)
        out[-1:] = last


class LiesAboutItsSize(FaultyInt8):
    def wire_bytes(self, elems: int) -> int:
        return super().wire_bytes(elems) + 1

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        return super().encode(x, payload[:-1], draw)

    def _dequantize(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, *, add: bool
    ) -> None:
        FaultyInt8()._dequantize(payload[:-1], out, weight, add=add)


class LeavesAByteUnwritten(LiesAboutItsSize):
    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        return super().encode(x, payload, draw) + 1


class PromisesTooMuch(OneBit):
    def bias(self, elems: int) -> Contraction:
        return Contraction(0.6)


class SaysThatItIsUnbiased(Bf16):
    def bias(self, elems: int) -> Unbiased:  # type: ignore[override]
        return Unbiased(1.0)


class ForgetsTheGain(RandomK):
    def bias(self, elems: int) -> Unbiased:
        return Unbiased(100.0)


class ChangesTheGradient(FaultyInt8):
    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        length = super().encode(x, payload, draw)
        x[:1] += 1.0
        return length


class DrawsFromTheUser(FaultyInt8):
    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        torch.rand(1)
        return super().encode(x, payload, draw)


class DrawsFromNumpy(FaultyInt8):
    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        np.random.rand()
        return super().encode(x, payload, draw)


class HidesNan(FaultyInt8):
    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        return super().encode(x.nan_to_num(0.0, 0.0, 0.0), payload, draw)


class PoisonsItsResidual(FaultyInt8):
    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        corrected = x + scale * residual
        length = self.encode(corrected, payload, draw)
        decoded = torch.empty_like(x)
        self.decode(payload, decoded, draw)
        residual.copy_((corrected - decoded) / scale)
        return length


class ResetsItsResidual(FaultyInt8):
    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        length = super().encode_feedback(x, residual, payload, draw, scale)
        residual.zero_()
        return length


class ForgetsTheLossScale(FaultyInt8):
    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        return super().encode_feedback(x, residual, payload, draw, 1.0)


class TakesAnyLength(FaultyInt8):
    def check(self, payload: torch.Tensor, elems: int) -> None:
        """Nothing is checked."""

    def _dequantize(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, *, add: bool
    ) -> None:
        padded = torch.zeros(self.wire_bytes(out.numel()), dtype=torch.uint8)
        length = min(padded.numel(), payload.numel())
        padded[:length] = payload[:length]
        super()._dequantize(padded, out, weight, add=add)


class WritesBeforeItChecks(FaultyInt8):
    def decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        out.zero_()
        super().decode(payload, out, draw)


class WritesPastTheEnd(FaultyInt8):
    def decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        super().decode(payload, out, draw)
        out.as_strided((out.numel() + 1,), (1,))[-1] = 0.0


class WritesPastThePayload(FaultyInt8):
    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        payload.as_strided((payload.numel() + 1,), (1,))[-1] = 0
        return super().encode(x, payload, draw)


class RaisesTheWrongError(TopK):
    def check(self, payload: torch.Tensor, elems: int) -> None:
        try:
            super().check(payload, elems)
        except PayloadError as error:
            raise IndexError from error
