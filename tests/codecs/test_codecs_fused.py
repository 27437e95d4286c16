"""A codec's core decides: what follows from it is final, and nothing fused outlives it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from compressa.codecs import (
    Codec,
    Contraction,
    DeMo,
    Draw,
    Fp8,
    Fp16,
    Int4,
    Int8,
    Natural,
    OneBit,
    OneBitSGD,
)
from compressa.codecs.base import codec_of
from compressa.codecs.fused import Fused
from compressa.compressor import Compressor, Granularity
from compressa.errors import PayloadError
from compressa.wrappers import DenseBelow, ErrorFeedback, Flushed, MomentumCorrection, Warmup

DRAW = Draw(seed=1, step=2, parameter=3, start=0, rank=0)
FINAL = (
    "encode_feedback",
    "decode",
    "decode_sum",
    "check",
    "check_length",
    "cut",
    "payload_bytes",
)


@dataclass(frozen=True, kw_only=True)
class Copies(Codec):
    """A core and nothing else; the last byte says that it is one."""

    name: ClassVar[str] = "copies"
    wire_id: ClassVar[int] = 204

    @property
    def granularity(self) -> Granularity:
        return Granularity.PARAMETER

    def wire_bytes(self, elems: int) -> int:
        return 4 * elems + 4

    def bias(self, elems: int) -> Contraction:
        return Contraction(1.0)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        payload[:-4].view(torch.float32).copy_(x)
        payload[-4:] = 1
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        self.check(payload, out.numel())
        out.add_(payload[:-4].view(torch.float32), alpha=weight)

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        if payload[-1] != 1:
            raise PayloadError("copies: this is no copy")


@pytest.mark.parametrize("name", FINAL)
@pytest.mark.parametrize("base", [Codec, Int8])
def test_what_follows_from_the_core_is_final(base: type[Codec], name: str) -> None:
    with pytest.raises(TypeError, match=rf"Mine\.{name}: every codec's .* goes into `fused`"):
        type("Mine", (base,), {name: lambda self: None})


@pytest.mark.parametrize("name", ["encode", "decode_add"])
@pytest.mark.parametrize("base", [Int8, OneBit])
def test_another_core_does_not_inherit_what_is_fused(base: type[Codec], name: str) -> None:
    with pytest.raises(TypeError, match=rf"Mine has its own {name}, .*\.fused does; define"):
        type("Mine", (base,), {name: lambda self: None})


def test_another_core_with_its_own_fused_ways_is_what_all_ways_do() -> None:
    class Doubles(Int8):
        def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
            return super().encode(2.0 * x, payload, draw)

        @property
        def fused(self) -> Fused:
            return replace(super().fused, encode_feedback=None, averager=None, encoder=None)

    codec, x = Doubles(), torch.ones(300)
    payload, residual, out = torch.zeros(codec.wire_bytes(300), dtype=torch.uint8), x - x, x - x
    codec.encode_feedback(x, residual, payload, DRAW)
    codec.decode(payload, out, DRAW)
    assert torch.allclose(out, 2.0 * x)
    assert torch.equal(residual, x - out)


def test_a_core_is_enough() -> None:
    codec, x = Copies(), torch.randn(7, generator=torch.Generator().manual_seed(1))
    payload, residual, out = torch.zeros(32, dtype=torch.uint8), x.clone(), torch.zeros(7)
    assert codec.encode_feedback(x, residual, payload, DRAW, 2.0) == 32
    assert not residual.any()
    codec.decode(payload, out, DRAW)
    assert torch.equal(out, 3.0 * x)
    codec.decode_sum([(payload, DRAW)] * 2, out, 0.5)
    assert torch.equal(out, 3.0 * x)


def test_length_and_content_are_both_checked() -> None:
    payload = torch.ones(32, dtype=torch.uint8)
    Copies().check(payload, 7)
    with pytest.raises(PayloadError, match="take exactly 28 bytes"):
        Copies().check(payload, 6)
    with pytest.raises(PayloadError, match="no copy"):
        Copies().check(payload - 1, 7)
    Copies().check_length(payload - 1, 7)


FEEDBACK = ErrorFeedback(codec=Int8())


@pytest.mark.parametrize(
    "wrapper",
    [
        FEEDBACK,
        Flushed(compressor=FEEDBACK),
        DenseBelow(compressor=FEEDBACK, elems=9),
        MomentumCorrection(compressor=FEEDBACK),
        Warmup(compressor=Flushed(compressor=FEEDBACK), steps=2),
    ],
    ids=lambda wrapper: wrapper.name,
)
def test_the_codec_is_found_in_any_wrapper(wrapper: Compressor) -> None:
    assert codec_of(wrapper) == Int8()
    assert wrapper.block_elems == Int8().block_elems
    assert wrapper.granularity is Granularity.BLOCK
    assert wrapper.payload_bytes((30, 50)) == Int8().wire_bytes(1500)


@pytest.mark.parametrize(
    "codec",
    [
        Int4(mapping="maxmin"),
        OneBit(),
        OneBitSGD(group=33),
        Fp8(),
        Fp16(),
        Natural(),
        Natural(levels=7),
        DeMo(),
        DeMo(chunk=32, kept=3, columns=100),
    ],
    ids=repr,
)
def test_a_cut_of_a_payload_decodes_to_that_part_of_the_vector(codec: Codec) -> None:
    block = codec.block_elems
    elems = 7 * block + block // 3 + 5
    x = torch.randn(elems, generator=torch.Generator().manual_seed(2))
    payload, whole = torch.zeros(codec.wire_bytes(elems), dtype=torch.uint8), torch.zeros(elems)
    codec.encode(x, payload, DRAW)
    codec.decode(payload, whole, DRAW)
    for start, stop in ((0, 3 * block), (2 * block, 5 * block), (5 * block, elems)):
        part = torch.zeros(stop - start)
        codec.decode(codec.cut(payload, elems, start, stop), part, DRAW)
        assert torch.equal(part, whole[start:stop])
