"""Units of many small parameters on an emulated GPU: one launch takes all scopes of a payload.

What they leave is what a CPU leaves that takes scope by scope, bit for bit; and so is what a CPU
leaves that knows where all scopes lie.
"""

from __future__ import annotations

import gc
import shutil
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from _gpu_units import (
    HEADER,
    RULE,
    SIZES,
    Unit,
    counted_launches,
    gradients_of,
    layout_of,
    same,
    steps_of,
)
from emulated_streams import DEVICE
from emulated_torch import as_cuda, emulated_torch, on_cpu, on_gpu

from compressa.aggregators.base import CPU, StepContext
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.momentum import Momentum
from compressa.codecs import QSGD, Codec, Int2, Int4, Int8, Natural, OneBit, TernGrad
from compressa.codecs.fused import Fused
from compressa.compressor import Compressor
from compressa.errors import PayloadError
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator
from compressa.testing.memory import same_bits
from compressa.wrappers import EF21, ErrorFeedback

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

CODECS: dict[str, Codec] = {
    "int8": Int8(block=32),
    "int8-maxmin": Int8(block=32, mapping="maxmin"),
    "int8-random": Int8(block=32, rounding="stochastic"),
    "int4": Int4(block=64),
    "int2": Int2(block=16),
    "qsgd": QSGD(block=64),
    "terngrad": TernGrad(block=64),
    "onebit": OneBit(block=64),
}


@pytest.fixture
def launched() -> Iterator[Counter[str]]:
    """How often each kernel is launched."""
    with counted_launches() as counts:
        yield counts


CASES = [
    *((name, torch.float32, RULE) for name in CODECS),
    *((name, torch.float32, None) for name in ("int8", "qsgd", "terngrad")),
    ("int8-maxmin", torch.bfloat16, RULE),
    ("qsgd", torch.float16, None),
    ("terngrad", torch.bfloat16, None),
    ("onebit", torch.float16, RULE),
]


@pytest.mark.parametrize(("name", "dtype", "rule"), CASES)
def test_seventy_scopes_leave_what_they_leave_one_by_one(
    name: str, dtype: torch.dtype, rule: FeedbackRule | None
) -> None:
    due = steps_of(CODECS[name], CPU, rule, dtype)
    known = steps_of(CODECS[name], CPU, rule, dtype, multi_tensor=True)
    with emulated_torch():
        found = steps_of(CODECS[name], DEVICE, rule, dtype)
    for one_by_one, *others in zip(due, known, found, strict=True):
        assert all(same(other, one_by_one) for other in others)


@pytest.mark.parametrize("rule", [None, RULE], ids=["plain", "feedback"])
@pytest.mark.parametrize(("codec", "bits"), [(Int8(block=32), 8), (OneBit(block=64), 1)])
def test_a_unit_of_forty_scopes_takes_two_launches(
    codec: Codec, bits: int, rule: FeedbackRule | None, launched: Counter[str]
) -> None:
    sizes = 4 * SIZES
    with emulated_torch():
        unit = Unit(codec, sizes, rule=rule, ranks=1)
        gradients = [on_gpu(x) for x in gradients_of(sizes, 0, torch.float32)]
        for step in range(3):
            unit.step(gradients, StepContext(step))
        torch.cuda.synchronize()
    kinds = [f"{kind}_many_{bits}_by_warps" for kind in ("quantize", "sum")]
    assert launched == dict.fromkeys([*kinds, HEADER], 3)


@pytest.mark.parametrize("ranks", [8, 9])
def test_every_eight_ranks_take_another_launch(ranks: int, launched: Counter[str]) -> None:
    found = []
    for device in (CPU, DEVICE):
        with emulated_torch():
            unit = Unit(Int4(block=64), SIZES, device, RULE, ranks)
            gradients = gradients_of(SIZES, 0, torch.bfloat16)
            gradients = gradients if device == CPU else [on_gpu(x) for x in gradients]
            payload = unit.step(gradients, StepContext(0))
            found.append(unit.all_there(gradients, payload))
    assert same(*found)
    each = {"quantize_many_4_by_warps": ranks, HEADER: ranks}
    assert launched == {**each, "sum_many_4_by_warps": 1 + ranks // 9}


def test_what_a_launch_takes_is_made_once_and_anew_when_buckets_are() -> None:
    made: list[str] = []

    class Watched(Int8):
        @property
        def fused(self) -> Fused:
            encoder, decoder = Int8(block=32).fused.encoder, Int8(block=32).fused.decoder
            assert encoder
            assert decoder
            return replace(
                super().fused,
                encoder=lambda *asked: made.append("encoder") or encoder(*asked),
                decoder=lambda *asked: made.append("decoder") or decoder(*asked),
            )

    codec = Watched(block=32)
    with emulated_torch():
        unit, due = (Unit(codec, SIZES, device, RULE, 1) for device in (DEVICE, CPU))
        buckets = [torch.zeros(sum(SIZES)) for _ in range(2)]
        step, expected = 0, []
        for bucket in (*3 * buckets[:1], *2 * buckets[1:], *2 * buckets[:1]):
            for own, x in zip(
                bucket.split(SIZES), gradients_of(SIZES, step, bucket.dtype), strict=True
            ):
                own.copy_(x)
            given, host = list(as_cuda(bucket).split(SIZES)), list(bucket.clone().split(SIZES))
            left = unit.all_there(given, unit.step(given, StepContext(step)))
            expected = due.all_there(host, due.step(host, StepContext(step)))
            assert same(left, expected)
            step += 1
        assert made == ["encoder", "decoder"] * 2
        state = unit.state
        for name, residual in state.vectors.items():  # as a checkpoint does
            state.vectors[name] = residual.clone()
        given, host = list(as_cuda(bucket).split(SIZES)), list(bucket.clone().split(SIZES))
        left = unit.all_there(given, unit.step(given, StepContext(step)))
        assert same(left, due.all_there(host, due.step(host, StepContext(step))))
        assert made == ["encoder", "decoder"] * 2 + ["encoder"]


def test_gradients_and_residuals_that_are_let_go_are_not_kept() -> None:
    with emulated_torch():
        unit = Unit(Int8(block=32), SIZES, rule=RULE)
        gone = []
        for step in range(6):
            gradients = [on_gpu(x) for x in gradients_of(SIZES, step, torch.float32)]
            state = unit.state
            state.vectors = {name: residual.clone() for name, residual in state.vectors.items()}
            unit.step(gradients, StepContext(step))
            torch.cuda.synchronize()
            gone += [weakref.ref(x) for x in (*gradients, *unit.state.vectors.values())]
        unit.state.vectors.clear()
        del gradients, state
        gc.collect()
        assert not [x for x in gone if x() is not None]


RULES = {
    "decay": FeedbackRule(decay=0.5),
    "beta": FeedbackRule(beta=0.5),
    "bfloat16": FeedbackRule(dtype="bfloat16"),
    "momentum": FeedbackRule(momentum=Momentum()),
    "reset": FeedbackRule(reset_steps=1),
    "holding": RULE,
}


@pytest.mark.parametrize("name", RULES)
def test_scopes_whose_values_change_before_go_one_by_one(name: str, launched: Counter[str]) -> None:
    context, found = StepContext(2, hold_zeros=name == "holding"), []
    for device in (CPU, DEVICE):
        with emulated_torch():
            unit = Unit(Int8(block=32), SIZES, device, RULES[name], 1)
            gradients = gradients_of(SIZES, 0, torch.float32)
            gradients[4].zero_()
            gradients = gradients if device == CPU else [on_gpu(x) for x in gradients]
            found.append(unit.all_there(gradients, unit.step(gradients, context)))
    assert same(*found)
    assert launched["quantize_8_by_warps"] >= len(SIZES) - 1
    assert not launched["quantize_many_8_by_warps"]
    assert launched["sum_many_8_by_warps"] == 1


class Louder(Int8):
    """A codec that does something else."""

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Any) -> int:
        return super().encode(2.0 * x, payload, draw)

    @property
    def fused(self) -> Fused:
        return Fused()


@pytest.mark.parametrize("codec", [Louder(block=32), Natural(levels=7)], ids=["louder", "dithered"])
def test_codecs_that_do_otherwise_go_one_by_one(codec: Codec, launched: Counter[str]) -> None:
    found = []
    for device in (CPU, DEVICE):
        with emulated_torch():
            unit = Unit(codec, SIZES, device)
            gradients = gradients_of(SIZES, 0, torch.float32)
            gradients = gradients if device == CPU else [on_gpu(x) for x in gradients]
            unit.step(gradients, StepContext(0))
            found.append(unit.all_there(gradients))
    assert same(*found)
    assert not [name for name in launched if "_many_" in name]


def test_an_address_that_comes_back_with_another_dtype_is_another_place() -> None:
    memory = torch.zeros(2 * sum(SIZES))
    with emulated_torch():
        unit, due = (Unit(Int8(block=32), SIZES, device) for device in (DEVICE, CPU))
        for step, dtype in enumerate((torch.float32, torch.bfloat16, torch.float32)):
            values = torch.cat(gradients_of(SIZES, step, dtype))
            bucket = memory.view(dtype)[: values.numel()]
            bucket.copy_(values)
            given, host = as_cuda(bucket).split(SIZES), values.split(SIZES)
            left = unit.all_there(given, unit.step(given, StepContext(step)))
            assert same(left, due.all_there(host, due.step(host, StepContext(step))))


def test_a_payload_of_another_length_is_refused() -> None:
    with emulated_torch():
        unit = Unit(Int8(block=32), SIZES)
        gradients = [on_gpu(x) for x in gradients_of(SIZES, 0, torch.float32)]
        payload = unit.scopes.buffer()
        for wrong in (payload[:-8], torch.cat([payload, payload[:8]])):
            with pytest.raises(PayloadError, match="end at byte"):
                unit.scopes.average([payload, wrong], gradients, StepContext(0))


def test_what_a_cpu_knows_of_scopes_is_made_once_and_keeps_none_of_their_memory() -> None:
    codec = Int8(block=32)
    made = mock.Mock(side_effect=codec.fused.encoder)
    with mock.patch.object(Int8, "fused", replace(codec.fused, encoder=made)):
        unit, gradients = Unit(Int8(block=32), SIZES, CPU, RULE, 1, multi_tensor=True), []
        for step in range(6):
            if step % 3 == 0:
                gradients = gradients_of(SIZES, step, torch.float32)
            unit.step(gradients, StepContext(step))
    assert made.call_count == 1
    made.reset_mock()
    let_go = [weakref.ref(x) for x in (*gradients, *unit.state.vectors.values())]
    gradients.clear()
    unit.state.vectors.clear()
    gc.collect()
    assert not [x for x in let_go if x() is not None]


WHOLE = {f"p{i}": (size,) for i, size in enumerate(SIZES)} | {"weight": (40, 60)}


def history(
    compressor: Compressor, device: torch.device, exchange: str, dtype: torch.dtype
) -> list[dict[str, torch.Tensor]]:
    """Return each rank's means and state after every step; units cut the parameters."""
    there, back = (on_gpu, on_cpu) if device == DEVICE else (torch.clone, torch.clone)
    parameters = [ParameterInfo(i, n, shape, dtype) for i, (n, shape) in enumerate(WHOLE.items())]
    settings: dict[str, Any] = {"exchange": exchange, "unit_bytes": 6000, "device": device}
    world, found = LoopbackWorld(3, parameters, compressor, **settings), []
    for step, loss_scale in enumerate((1.0, 64.0, 1.0)):
        random = generator(step)
        given = [
            {
                n: there((loss_scale * torch.randn(s, generator=random)).to(dtype))
                for n, s in WHOLE.items()
            }
            for _ in range(3)
        ]
        means = world.step(given, loss_scale=loss_scale)
        if step == 1:
            world.rollback()
        if device == DEVICE:
            torch.cuda.synchronize()
        for own, state in zip(means, world.states, strict=True):
            found.append({n: back(x) for n, x in (own | state.vectors).items()})
    return found


COMPRESSORS: dict[str, Compressor] = {
    "int8": ErrorFeedback(codec=Int8(block=32)),
    "int4-maxmin": ErrorFeedback(codec=Int4(block=32, mapping="maxmin")),
    "peers": ErrorFeedback(codec=Int8(block=32), rule=FeedbackRule(owner=False)),
    "qsgd": QSGD(block=64),
    "terngrad": TernGrad(block=64),
    "ef21": EF21(codec=Int8(block=32)),
}
EXCHANGES = [
    *((name, "scatter_reduce", torch.float32) for name in ("int8", "peers", "terngrad")),
    *((name, "all_gather", torch.float32) for name in ("int4-maxmin", "qsgd")),
    *((name, "scatter_reduce", torch.bfloat16) for name in ("int4-maxmin", "qsgd")),
    ("ef21", "all_gather", torch.bfloat16),
]


@pytest.mark.parametrize(("name", "exchange", "dtype"), EXCHANGES)
def test_exchanges_leave_what_they_leave_on_a_cpu(
    name: str, exchange: str, dtype: torch.dtype
) -> None:
    compressor = COMPRESSORS[name]
    due = history(compressor, CPU, exchange, dtype)
    with emulated_torch():
        found = history(compressor, DEVICE, exchange, dtype)
    for ours, theirs in zip(found, due, strict=True):
        assert ours.keys() == theirs.keys()
        assert not [name for name in ours if not same_bits(ours[name], theirs[name])]


def test_shards_are_encoded_added_and_decoded_by_one_launch_each(
    launched: Counter[str],
) -> None:
    ranks, sizes = 3, 4 * SIZES
    parameters = [segment.parameter for segment in layout_of(sizes).segments]
    settings: dict[str, Any] = {"exchange": "scatter_reduce", "device": DEVICE}
    with emulated_torch():
        world = LoopbackWorld(ranks, parameters, QSGD(block=64), unit_bytes=1 << 20, **settings)
        launched.clear()  # of what sees that kernels can run
        given = [
            {
                p.name: on_gpu(x)
                for p, x in zip(parameters, gradients_of(sizes, rank, torch.float32), strict=True)
            }
            for rank in range(ranks)
        ]
        world.step(given)
        torch.cuda.synchronize()
    assert world.unit_count == 1
    # Every rank: its peers' shards, its own mean; what each sent; its own shard, and all peers'.
    assert launched == {
        "quantize_many_at_random_4_by_warps": ranks * 2,
        HEADER: ranks * ranks,
        "sum_many_4_by_warps": ranks * (ranks - 1) + ranks * 2,
    }
