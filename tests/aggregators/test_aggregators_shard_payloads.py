"""Shards of all ranks that are taken in one call have the bits of shards taken one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest import mock

import pytest
import torch
from kernel_cases import same_bits

from compressa.aggregators.shard_payloads import ShardPayloads
from compressa.codecs import Fp8, Int2, Int4, Int8, OneBit
from compressa.codecs.fused import Fused
from compressa.compressor import Compressor
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.wrappers import ErrorFeedback

MODEL = [
    ParameterInfo(0, "matrix", (70, 40)),
    ParameterInfo(1, "bias", (3,)),
    ParameterInfo(2, "vector", (333,)),
]
CALLS: Counter[str] = Counter()


@dataclass(frozen=True, kw_only=True)
class Int8Counted(Int8):
    """Int8 that counts its calls for several scopes."""

    @cached_property
    def fused(self) -> Fused:
        own = super().fused
        return replace(
            own, encoder=counted("encode", own.encoder), decoder=counted("decode", own.decoder)
        )


def counted(name: str, make: Any) -> Any:
    def made(*given: object) -> Any:
        one = make(*given)
        call = getattr(one, name)

        def count(*args: object) -> object:
            CALLS[name] += 1
            return call(*args)

        setattr(one, name, count)
        return one

    return made


def steps(compressor: Compressor, ranks: int) -> Iterator[torch.Tensor]:
    """Means of some steps, the last of which is skipped, and what ranks keep of them."""
    world = LoopbackWorld(ranks, MODEL, compressor, exchange="scatter_reduce")
    for step in range(4):
        random = torch.Generator().manual_seed(step)
        drawn = [
            {p.name: torch.randn(p.shape, generator=random) for p in MODEL} for _ in "x" * ranks
        ]
        if step == 3:
            drawn[0]["matrix"][3, 5] = torch.inf
        for means in world.step(drawn, loss_scale=8.0, hold_zeros=step == 1):
            yield from means.values()
        if step == 3:
            world.rollback()
        for state in world.states:
            yield from (vector.clone() for vector in state.vectors.values())


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize(
    "compressor",
    [
        *(ErrorFeedback(codec=codec) for codec in (Int8(), Int4(), OneBit(block=64), Fp8())),
        *(Int8(), Int2(), OneBit(), Int4(rounding="stochastic", mapping="maxmin")),
    ],
    ids=repr,
)
def test_one_call_for_all_shards_changes_no_bit(compressor: Compressor, ranks: int) -> None:
    together = list(steps(compressor, ranks))
    with mock.patch.object(ShardPayloads, "_multi_tensor", return_value=None):
        alone = list(steps(compressor, ranks))
    pairs = zip(together, alone, strict=True)
    assert all(same_bits(one.numpy(), other.numpy()) for one, other in pairs)


def test_shards_of_all_others_are_encoded_in_one_call_and_decoded_in_one() -> None:
    CALLS.clear()
    settings: dict[str, Any] = {"exchange": "scatter_reduce", "unit_bytes": 1 << 20}
    world = LoopbackWorld(5, MODEL, Int8Counted(), **settings)
    world.step([{p.name: torch.ones(p.shape) for p in MODEL}] * 5)
    assert CALLS == {"encode": 5, "decode": 5}  # once on each rank
