"""int8, onebit and others with one fault each; each class is named after its fault."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Le
from compressa.kernels import philox
from compressa.kernels.threads import over_slices
from torch import Tensor

from compressa.codecs import (
    Bf16,
    Bias,
    Biased,
    Bounded,
    Codec,
    Contraction,
    Draw,
    Fp16,
    Int8,
    OneBit,
    RandomK,
    Reduction,
    TopK,
    Unbiased,
)
from compressa.codecs.fused import Fused
from compressa.compressor import Compressor, Granularity
from compressa.errors import PayloadError
from compressa.parameters import ParameterInfo


@dataclass(frozen=True, kw_only=True)
class FaultyInt8(Codec):
    """The core of int8 with small blocks, to be broken; a fault in it shows in all that follows."""

    name: ClassVar[str] = "faulty"
    wire_id: ClassVar[int] = 203

    block: Annotated[int, Ge(8)] = 32

    @cached_property
    def int8(self) -> Int8:
        """What is to be broken."""
        return Int8(block=self.block)

    @property
    def sound(self) -> FaultyInt8:
        """The same without a fault."""
        return FaultyInt8(block=self.block)

    @property
    def granularity(self) -> Granularity:
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        return self.block

    def wire_bytes(self, elems: int) -> int:
        return self.int8.wire_bytes(elems)

    def bias(self, elems: int) -> Bias:
        return self.int8.bias(elems)

    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        return self.int8.encode(x, payload, draw)

    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        self.int8.decode_add(payload, out, weight, draw)


class KeepsResiduals(FaultyInt8):
    """Has an encode with feedback of its own: `feed_back`."""

    feed_back: ClassVar[Any]

    @property
    def fused(self) -> Fused:
        return Fused(encode_feedback=self.feed_back)


class DecodesByItself(FaultyInt8):
    """Has a decode of its own: `write`."""

    write: ClassVar[Any]

    @property
    def fused(self) -> Fused:
        return Fused(decode=self.write)


class Allocates(KeepsResiduals):
    def feed_back(
        self, x: Tensor, residual: Tensor, payload: Tensor, draw: Draw, loss_scale: float
    ) -> int:
        effective = residual.mul(loss_scale).add_(x)
        return self.sound.encode_feedback(effective, residual.zero_(), payload, draw, loss_scale)


class DropsOneElement(FaultyInt8):
    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        last = out[-1:].clone()
        super().decode_add(payload, out, weight, draw)
        if out.numel() > 1:
            out[-1:] = last


class DropsOneElementFromDecodeAdd(FaultyInt8):
    @property
    def fused(self) -> Fused:
        return Fused(decode=self.sound.decode)

    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        last = out[-1:].clone()
        super().decode_add(payload, out, weight, draw)
        out[-1:] = last


class SumsWithoutTheWeight(FaultyInt8):
    @property
    def fused(self) -> Fused:
        return Fused(decode_sum=self.add_up)

    def add_up(self, payloads: Sequence[tuple[Tensor, Draw]], out: Tensor, weight: float) -> None:
        self.sound.decode_sum(payloads, out, 1.0)


class LiesAboutItsSize(FaultyInt8):
    def wire_bytes(self, elems: int) -> int:
        return super().wire_bytes(elems) + 1

    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        return super().encode(x, payload[:-1], draw)

    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        super().decode_add(payload[:-1], out, weight, draw)


class LeavesAByteUnwritten(LiesAboutItsSize):
    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        return super().encode(x, payload, draw) + 1


class PromisesTooMuch(OneBit):
    def bias(self, elems: int) -> Contraction:
        return Contraction(0.6)


class ForgetsWhatFloat16Holds(Fp16):
    def bias(self, elems: int) -> Contraction:
        return Contraction(super().bias(elems).delta)


class SaysThatItIsUnbiased(Bf16):
    def bias(self, elems: int) -> Unbiased:
        return Unbiased(1.0)


class ForgetsTheGain(RandomK):
    def bias(self, elems: int) -> Unbiased:
        return Unbiased(100.0)

    @property
    def error_feedback(self) -> bool:
        return False


class ChangesTheGradient(FaultyInt8):
    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        length = super().encode(x, payload, draw)
        x[:1] += 1.0
        return length


class DrawsFromTheUser(FaultyInt8):
    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        torch.rand(1)
        return super().encode(x, payload, draw)


class DrawsFromNumpy(FaultyInt8):
    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        np.random.rand()
        return super().encode(x, payload, draw)


class HidesNan(FaultyInt8):
    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        return super().encode(x.nan_to_num(0.0, 0.0, 0.0), payload, draw)


class PoisonsItsResidual(KeepsResiduals):
    def feed_back(
        self, x: Tensor, residual: Tensor, payload: Tensor, draw: Draw, loss_scale: float
    ) -> int:
        corrected = x + loss_scale * residual
        length = self.encode(corrected, payload, draw)
        decoded = torch.empty_like(x)
        self.decode(payload, decoded, draw)
        residual.copy_((corrected - decoded) / loss_scale)
        return length


class ResetsItsResidual(KeepsResiduals):
    def feed_back(
        self, x: Tensor, residual: Tensor, payload: Tensor, draw: Draw, loss_scale: float
    ) -> int:
        length = self.sound.encode_feedback(x, residual, payload, draw, loss_scale)
        residual.zero_()
        return length


class ForgetsTheLossScale(KeepsResiduals):
    def feed_back(
        self, x: Tensor, residual: Tensor, payload: Tensor, draw: Draw, loss_scale: float
    ) -> int:
        return self.sound.encode_feedback(x, residual, payload, draw, 1.0)


class TakesAnyLength(FaultyInt8):
    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        padded = torch.zeros(self.wire_bytes(out.numel()), dtype=torch.uint8)
        length = min(padded.numel(), payload.numel())
        padded[:length] = payload[:length]
        super().decode_add(padded, out, weight, draw)


class WritesBeforeItChecks(DecodesByItself):
    def write(self, payload: Tensor, out: Tensor, draw: Draw) -> None:
        out.zero_()
        self.sound.decode(payload, out, draw)


class WritesPastTheEnd(DecodesByItself):
    def write(self, payload: Tensor, out: Tensor, draw: Draw) -> None:
        self.sound.decode(payload, out, draw)
        out.as_strided((out.numel() + 1,), (1,))[-1] = 0.0


class WritesPastThePayload(FaultyInt8):
    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        payload.as_strided((payload.numel() + 1,), (1,))[-1] = 0
        return super().encode(x, payload, draw)


class RaisesTheWrongError(TopK):
    def check_content(self, payload: Tensor, elems: int) -> None:
        try:
            super().check_content(payload, elems)
        except PayloadError as error:
            raise IndexError from error


# What a compressor says of itself.


@dataclass(frozen=True)
class TakesPositions(FaultyInt8):
    """Hyper-parameters by position."""

    extra: int = 0


@dataclass(frozen=True, kw_only=True)
class HoldsAList(FaultyInt8):
    """Cannot be the key by which parameters share a unit."""

    blocks: list[int] = field(default_factory=list)


class EqualsOnlyItself(FaultyInt8):
    """Two with the same hyper-parameters differ, so that no two parameters share a unit."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(self.block)


class HasAnOddName(FaultyInt8):
    name: ClassVar[str] = "Int 8"


@dataclass(frozen=True, kw_only=True, repr=False)
class HidesAField(FaultyInt8):
    """Its repr leaves the block out."""

    block: int = 64

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


HIDES_A_FIELD = HidesAField(block=32)


@dataclass(frozen=True, kw_only=True)
class DeclaresAnotherBound(FaultyInt8):
    """A configuration refuses what the class itself takes."""

    block: Annotated[int, Le(16)] = 32


class TakesAnothersWireId(RandomK):
    name: ClassVar[str] = "another"
    wire_id: ClassVar[int] = 3


class WantsFeedbackInVain(RandomK):
    @property
    def error_feedback(self) -> bool:
        return True


class HasBlocksOfElements(FaultyInt8):
    @property
    def granularity(self) -> Granularity:
        return Granularity.ELEMENT


class HidesABreakpoint(FaultyInt8):
    def at(self, step: int) -> Compressor:
        return replace(self, block=64) if step >= 2 else self


class NeverDecides(FaultyInt8):
    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        return replace(self, block=2 * self.block)


class CannotBeSummed(Fp16):
    """Sends square roots: their sum is not the root of the sum."""

    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        return super().encode(x.sign() * x.abs().sqrt(), payload, draw)

    @property
    def fused(self) -> Fused:
        return Fused()

    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        self.check(payload, out.numel())
        roots = payload.view(torch.float16).float()
        out.add_(roots * roots.abs(), alpha=weight)

    def bias(self, elems: int) -> Contraction:
        return Contraction(0.9)

    @property
    def reduce(self) -> Reduction:
        return Reduction(torch.float16)


# Sizes beyond 2^31.


class CountsIn32Bits(FaultyInt8):
    def wire_bytes(self, elems: int) -> int:
        return super().wire_bytes(elems) % 2**32


class CountsInFloat32(FaultyInt8):
    def wire_bytes(self, elems: int) -> int:
        return int(np.float32(super().wire_bytes(elems)))


class CountsInNumpy(FaultyInt8):
    def wire_bytes(self, elems: int) -> int:
        return np.int64(super().wire_bytes(elems))


class SendsMoreThanTheGradient(FaultyInt8):
    def wire_bytes(self, elems: int) -> int:
        return 12 * elems


class LosesItsBoundWhenLarge(FaultyInt8):
    def bias(self, elems: int) -> Contraction:
        return Contraction(1.0 - elems / 2**31)


# Random bits and error bounds.


@dataclass(frozen=True, kw_only=True)
class Dithers(Codec):
    """Sound: one byte an element, rounded up or down at random against the largest magnitude."""

    name: ClassVar[str] = "dithers"
    wire_id: ClassVar[int] = 201

    levels: int = 8

    @property
    def granularity(self) -> Granularity:
        return Granularity.BLOCK

    @property
    def error_feedback(self) -> bool:
        return False

    def wire_bytes(self, elems: int) -> int:
        return elems + 4

    def bias(self, elems: int) -> Unbiased | Contraction | Biased:
        return Unbiased(elems / (4.0 * self.levels**2) * (1 + 1e-5))

    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        array, raw = x.numpy(), payload.numpy()
        scale = np.float32(np.abs(array).max(initial=0.0)) / np.float32(self.levels)
        raw[-4:].view(np.float32)[0] = scale if np.isfinite(scale) else np.nan
        steps = array / scale if np.isfinite(scale) and scale > 0 else np.zeros_like(array)
        raw[:-4].view(np.int8)[:] = self.rounded(steps, self.noise(x.numel(), draw))
        return payload.numel()

    def rounded(self, steps: Any, noise: Any) -> npt.NDArray[Any]:
        """Round down, or up where the noise is below the fraction."""
        low = np.floor(steps)
        return np.clip(low + (noise < steps - low), -self.levels, self.levels)

    def noise(self, elems: int, draw: Draw) -> npt.NDArray[np.float64]:
        """Numbers from 0 to 1, others for every rank and stage."""
        words = np.empty(elems, np.uint32)
        whose = 201 << 24 | int(draw.owner) << 23 | draw.rank
        philox.random_words(
            words,
            seed=draw.seed,
            stream=whose,
            step=draw.step,
            parameter=draw.parameter,
            start=draw.start,
        )
        return words / 2.0**32

    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        self.check(payload, out.numel())
        raw = payload.numpy()
        scale = float(raw[-4:].copy().view(np.float32)[0])
        out.add_(torch.from_numpy(raw[:-4].view(np.int8)).float() * scale, alpha=weight)


class RoundsAlikeOnAllRanks(Dithers):
    def noise(self, elems: int, draw: Draw) -> npt.NDArray[np.float64]:
        return super().noise(elems, replace(draw, rank=0))


class RoundsAlikeAsOwner(Dithers):
    def noise(self, elems: int, draw: Draw) -> npt.NDArray[np.float64]:
        return super().noise(elems, replace(draw, owner=False))


class RoundsAlikeInAllParameters(Dithers):
    def noise(self, elems: int, draw: Draw) -> npt.NDArray[np.float64]:
        return super().noise(elems, replace(draw, parameter=0))


class ForgetsWhereItStarts(Dithers):
    def noise(self, elems: int, draw: Draw) -> npt.NDArray[np.float64]:
        return super().noise(elems, replace(draw, start=0))


class StartsIn32Bits(Dithers):
    def noise(self, elems: int, draw: Draw) -> npt.NDArray[np.float64]:
        return super().noise(elems, replace(draw, start=draw.start % 2**32))


class SharesWhatIsPrivate(Dithers):
    @property
    def shared_stream(self) -> bool:
        return True

    @property
    def fused(self) -> Fused:
        return Fused(decode=self.write)

    def write(self, payload: Tensor, out: Tensor, draw: Draw) -> None:
        Dithers(levels=self.levels).decode(payload, out, draw)
        out.mul_(torch.from_numpy(1 + 1e-3 * self.noise(out.numel(), draw)))


class SharesInSilence(RandomK):
    @property
    def shared_stream(self) -> bool:
        return False


class GainsThreePercent(Dithers):
    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        super().decode_add(payload, out, 1.03 * weight, draw)


class DropsSmallElements(Dithers):
    def rounded(self, steps: Any, noise: Any) -> npt.NDArray[Any]:
        return super().rounded(np.where(np.abs(steps) < 0.3, 0.0, steps), noise)


class RoundsUpTooOften(Dithers):
    def rounded(self, steps: Any, noise: Any) -> npt.NDArray[Any]:
        return super().rounded(steps, noise - 0.05)


class PromisesTooLittleNoise(Dithers):
    def bias(self, elems: int) -> Unbiased:
        return Unbiased(elems / (400.0 * self.levels**2))


class PromisesTooSmallABias(OneBit):
    def bias(self, elems: int) -> Biased:
        return Biased(0.3)

    @property
    def error_feedback(self) -> bool:
        return False


class ScalesByTheNorm(OneBit):
    """||x||_2 / sqrt(d) in place of ||x||_1 / d: no contraction on spiky vectors."""

    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        length = super().encode(x, payload, draw)
        for i, block in enumerate(x.split(self.block)):
            payload[4 * i : 4 * i + 4].view(torch.float32).fill_(block.norm() / len(block) ** 0.5)
        return length

    def bias(self, elems: int) -> Contraction:
        return Contraction(0.0)

    @property
    def fused(self) -> Fused:
        return Fused()


# Threads.


class CountsItsSlices(Dithers):
    """Each slice draws as if it were the whole: the bits depend on how the work is cut."""

    def noise(self, elems: int, draw: Draw) -> npt.NDArray[np.float64]:
        noise = np.empty(elems)

        def work(low: int, high: int) -> None:
            noise[low:high] = super(CountsItsSlices, self).noise(high - low, draw)

        over_slices(elems, 1, work)
        return noise


# Hostile payloads.


@dataclass(frozen=True, kw_only=True)
class Lists(Codec):
    """Sound: a count, as many values, as many indices; of Bounded size, to be broken."""

    name: ClassVar[str] = "lists"
    wire_id: ClassVar[int] = 202

    @property
    def granularity(self) -> Granularity:
        return Granularity.PARAMETER

    @property
    def size(self) -> Bounded:
        return Bounded()

    def wire_bytes(self, elems: int) -> int:
        return 4 + 8 * ((elems + 1) // 2)

    def bias(self, elems: int) -> Contraction:
        return Contraction(((elems + 1) // 2) / max(elems, 1))

    def encode(self, x: Tensor, payload: Tensor, draw: Draw) -> int:
        most = (x.numel() + 1) // 2
        magnitudes = torch.where(x.isfinite(), x.abs(), torch.inf)
        indices = magnitudes.topk(most).indices.sort().values
        indices = indices[x[indices] != 0]
        count = len(indices)
        words = payload[: 4 + 8 * count].numpy().view(np.uint32)
        words[0] = count
        words[1 : 1 + count] = x[indices].numpy().view(np.uint32)
        words[1 + count :] = indices.numpy()
        if not x.isfinite().all():
            words[1 : 1 + count] = np.float32(np.nan).view(np.uint32)
        return 4 + 8 * count

    def check_content(self, payload: Tensor, elems: int) -> None:
        self.read(payload, elems)

    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        self.check(payload, out.numel())
        values, indices = self.read(payload, out.numel())
        out.index_add_(0, indices, values, alpha=weight)

    def read(self, payload: Tensor, elems: int) -> tuple[Tensor, Tensor]:
        """Return values and indices, after checking that they are what `encode` writes."""
        if payload.numel() < 4 or payload.numel() != 4 + 8 * self.count(payload):
            raise PayloadError("lists: the count is not that of the bytes")
        count = self.count(payload)
        words = payload.numpy()[4:].copy().view(np.uint32)
        indices = torch.from_numpy(words[count:].astype(np.int64))
        self.check_indices(indices, elems)
        return torch.from_numpy(words[:count].view(np.float32)), indices

    @staticmethod
    def count(payload: Tensor) -> int:
        """Return what the payload says of itself."""
        return int.from_bytes(payload[:4].numpy().tobytes(), "little")

    def check_indices(self, indices: Tensor, elems: int) -> None:
        """Refuse indices that are not ascending, or outside."""
        ascending = bool((indices[1:] > indices[:-1]).all())
        if len(indices) and not (ascending and int(indices[-1]) < elems):
            raise PayloadError("lists: the indices are not ascending numbers below the length")


class TrustsItsCount(Lists):
    """Makes room for as many as the payload says, before it looks whether they are there."""

    def read(self, payload: Tensor, elems: int) -> tuple[Tensor, Tensor]:
        if payload.numel() >= 4:
            np.empty(min(self.count(payload), 1 << 28), np.float32)
        return super().read(payload, elems)


class TrustsItsIndices(Lists):
    def check_indices(self, indices: Tensor, elems: int) -> None:
        """All are taken."""


class WritesWhereItIsTold(TrustsItsIndices):
    """Through a pointer, as a kernel without checks would."""

    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        self.check(payload, out.numel())
        values, indices = self.read(payload, out.numel())
        for value, index in zip(values.tolist(), indices.tolist(), strict=True):
            _poke(out.data_ptr() + 4 * index, weight * value)


def _poke(address: int, value: float) -> None:
    """Add to the float32 at an address, whatever lies there."""
    ctypes.c_float.from_address(address).value += value


class ChecksLessThanItDecodes(Lists):
    def check_content(self, payload: Tensor, elems: int) -> None:
        """Nothing."""


class NeverEnds(Lists):
    def check_content(self, payload: Tensor, elems: int) -> None:
        super().check_content(payload, elems)
        values, _ = self.read(payload, elems)
        while values.isnan().any():
            pass


class WritesIntoThePayload(Dithers):
    def decode_add(self, payload: Tensor, out: Tensor, weight: float, draw: Draw) -> None:
        super().decode_add(payload, out, weight, draw)
        payload[:1] ^= 1
