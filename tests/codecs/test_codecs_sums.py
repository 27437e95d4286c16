"""Sums of payloads: the bits of one decoded after the other, and nothing where one is unfit."""

from __future__ import annotations

import pytest
import torch

from compressa.arrays import put
from compressa.codecs import (
    QSGD,
    Bf16,
    Codec,
    Draw,
    Fp8,
    Fp16,
    Int2,
    Int4,
    Int8,
    Natural,
    OneBit,
    RandomK,
    TernGrad,
    TopK,
)
from compressa.errors import PayloadError
from compressa.testing.inputs import generator

CODECS: list[Codec] = [
    Int8(),
    Int8(mapping="maxmin"),
    Int4(block=10),
    Int2(mapping="maxmin"),
    QSGD(),
    TernGrad(),
    OneBit(),
    Fp16(),
    Bf16(),
    Fp8(),
    Fp8(format="e5m2", block=10),
    Natural(),
    Natural(levels=7),
    TopK(density=0.1),
    RandomK(density=0.1),
]
IN_ONE_PASS = CODECS[:12]
ELEMS = 3001

Sent = list[tuple[torch.Tensor, Draw]]


def sent_by(codec: Codec, ranks: int) -> Sent:
    sent = []
    for rank in range(ranks):
        draw = Draw(seed=1, step=2, parameter=3, start=1024, rank=rank)
        payload = torch.zeros(codec.wire_bytes(ELEMS), dtype=torch.uint8)
        length = codec.encode(torch.randn(ELEMS, generator=generator(rank)), payload, draw)
        sent.append((payload[:length], draw))
    return sent


def one_by_one(codec: Codec, sent: Sent, weight: float) -> torch.Tensor:
    total = torch.zeros(ELEMS)
    for payload, draw in sent:
        codec.decode_add(payload, total, weight, draw)
    return total


@pytest.mark.parametrize("ranks", [0, 1, 9, 17])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_a_sum_is_that_of_one_payload_after_the_other(codec: Codec, ranks: int) -> None:
    sent, out = sent_by(codec, ranks), torch.full((ELEMS,), torch.nan)
    codec.decode_sum(sent, out, 0.3)
    due = one_by_one(codec, sent, 0.3)
    assert torch.equal(out.view(torch.int32), due.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("codec", IN_ONE_PASS, ids=repr)
def test_a_sum_in_16_bits_is_rounded_once(codec: Codec, dtype: torch.dtype) -> None:
    sent = sent_by(codec, 9)
    out, due = (torch.full((ELEMS,), torch.nan, dtype=dtype) for _ in range(2))
    codec.decode_sum(sent, out, 0.3)
    put(one_by_one(codec, sent, 0.3), due)
    assert torch.equal(out.view(torch.int16), due.view(torch.int16))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_an_unfit_payload_among_others_leaves_the_sum_untouched(codec: Codec) -> None:
    sent, out = sent_by(codec, 3), torch.ones(ELEMS)
    sent[2] = torch.zeros(codec.wire_bytes(ELEMS) + 8, dtype=torch.uint8), sent[2][1]
    with pytest.raises(PayloadError):
        codec.decode_sum(sent, out, 1.0)
    assert torch.equal(out, torch.ones(ELEMS))
