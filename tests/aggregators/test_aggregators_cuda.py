"""Compressors on an emulated GPU, whose streams do their work as late as they may, or early.

Every compressor leaves there the means and the state that it leaves on a CPU, bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from compressor_cases import ALL, with_feedback
from emulated_streams import DEVICE, Stream
from emulated_torch import StreamedEmulated, emulated_torch, on_cpu, on_gpu

from compressa.aggregators.acpsgd import ACPSGD
from compressa.aggregators.base import CPU, Aggregator, AllReduce, State, StepContext, World
from compressa.aggregators.chunked_topk import ChunkedTopK
from compressa.aggregators.factors import LowRank
from compressa.aggregators.gtopk import GTopK
from compressa.aggregators.powersgd import PowerSGD
from compressa.aggregators.signsgd import Signs
from compressa.aggregators.single import choose_exchange
from compressa.aggregators.thc import THC, THCAggregator
from compressa.codecs import (
    Bf16,
    Codec,
    Entropy,
    Int4,
    Int8,
    Natural,
    NoCompression,
    OneBit,
    RandomK,
    TopK,
)
from compressa.codecs.base import codec_of
from compressa.codecs.fused import Fused
from compressa.codecs.payload import HEADER_BYTES
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.errors import PayloadError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator
from compressa.testing.memory import same_bits
from compressa.wrappers import (
    EF21,
    DenseBelow,
    DensitySchedule,
    ErrorFeedback,
    FeedbackRule,
    Flushed,
    MomentumCorrection,
    Warmup,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

RANKS = 3
SHAPES = {"weight": (24, 40), "vector": (97,), "gain": (1,)}
MATRICES = {"w": (32, 64), "bias": (17,), "convolution": (9, 3, 3, 3)}
SCALES = (64.0, 1.0, 64.0)
"""Loss scales by step; steps with one are skipped afterwards."""
HOLDING, OVERFLOWING = 1, 2
"""The step in which gradients of zeros hold residuals back, and that with a NaN and an infinity."""

Numbers = dict[str, torch.Tensor]


def model(dtype: torch.dtype) -> list[ParameterInfo]:
    return [ParameterInfo(i, n, shape, dtype) for i, (n, shape) in enumerate(SHAPES.items())]


@cache
def gradients(step: int, dtype: torch.dtype) -> list[Numbers]:
    """Gradients by rank: what all of them share, and noise."""
    random = generator(step)
    common = {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}
    ranks = [
        {n: common[n] + 0.5 * torch.randn(s, generator=random) for n, s in SHAPES.items()}
        for _ in range(RANKS)
    ]
    if step == HOLDING:
        ranks[0]["weight"].zero_()
        for own in ranks:
            own["vector"].zero_()
    if step == OVERFLOWING:
        ranks[1]["weight"][3, 5] = torch.inf
        ranks[2]["vector"][7] = torch.nan
    return [{n: (SCALES[step] * x).to(dtype) for n, x in own.items()} for own in ranks]


def history(
    compressor: Compressor, device: torch.device, exchange: str, dtype: torch.dtype
) -> list[Numbers]:
    """Return each rank's means and state after every step, and after what skips it."""
    there = on_gpu if device == DEVICE else torch.clone
    settings: dict[str, Any] = {"exchange": exchange, "unit_bytes": 4096, "device": device}
    world = LoopbackWorld(RANKS, model(dtype), compressor, **settings)
    found: list[Numbers] = []
    for step, loss_scale in enumerate(SCALES):
        given = [{n: there(x) for n, x in own.items()} for own in gradients(step, dtype)]
        means = world.step(given, loss_scale=loss_scale, hold_zeros=step == HOLDING)
        found += snapshot(world, means)
        if loss_scale != 1.0:
            world.rollback()
            found += snapshot(world, means)
    return found


def snapshot(world: LoopbackWorld, means: Sequence[Numbers]) -> list[Numbers]:
    """Return each rank's means and state as they are now."""
    if world.states[0].device == CPU:
        back = torch.clone
    else:
        torch.cuda.synchronize()
        back = on_cpu
    pairs = zip(means, world.states, strict=True)
    return [{name: back(x) for name, x in (own | state.vectors).items()} for own, state in pairs]


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether all bits are the same, but for those of a NaN."""
    nans = a.isnan(), b.isnan()
    return same_bits(*nans) and same_bits(a.masked_fill(nans[0], 0), b.masked_fill(nans[1], 0))


def check(
    compressor: Compressor,
    *,
    exchange: str = "auto",
    dtype: torch.dtype = torch.float32,
    seed: int | None = None,
) -> None:
    """Compare a run on the CPU with one on the GPU, whose streams are late or eager by a seed."""
    due = history(compressor, CPU, exchange, dtype)
    with emulated_torch(seed):
        found = history(compressor, DEVICE, exchange, dtype)
    for number, (ours, theirs) in enumerate(zip(found, due, strict=True)):
        assert ours.keys() == theirs.keys()
        wrong = [name for name in ours if not same_numbers(ours[name], theirs[name])]
        assert not wrong, f"snapshot {number // RANKS}, rank {number % RANKS}: {wrong}"


def by_default(name: str) -> Compressor:
    """Return a compressor with error feedback where a configuration adds it."""
    compressor = COMPRESSORS[name].compressor()
    wanted = isinstance(compressor, Codec) and compressor.error_feedback
    return with_feedback(compressor) if wanted else compressor


class Unfused(Int8):
    """A codec that keeps no residuals by itself."""

    @property
    def fused(self) -> Fused:
        return replace(super().fused, encode_feedback=None, encoder=None)


SPARSE = ErrorFeedback(codec=TopK(density=0.05))
CODECS: dict[str, Codec] = {
    "int8": Int8(block=32),
    "onebit": OneBit(block=64),
    "topk": TopK(density=0.05),
    "unfused": Unfused(block=32),
}
RULES = {
    "decayed": FeedbackRule(decay=0.9, beta=0.5, reset_steps=2),
    "bfloat16": FeedbackRule(dtype="bfloat16"),
    "int8": FeedbackRule(dtype="int8", beta=0.5),
    "peers": FeedbackRule(owner=False),
}
FORMS: dict[str, Compressor] = {
    name: ALL[name]
    for name in (
        *("chunked-topk-small-chunks", "gtopk-float16", "gtopk-all", "intsgd-32"),
        *("scalecom-filtered", "signsgd-alternate", "thc-without-feedback"),
    )
} | {
    "gtopk-bits": GTopK(density=0.1, indices="bits"),
    "thc-wide": THC(levels=120, chunk=256),
    "scaled": ErrorFeedback(codec=Natural(), scaled=True),
    "scaled-sum": ErrorFeedback(codec=RandomK(density=0.3, unbiased=True), scaled=True),
    "ef21": EF21(codec=TopK(density=0.05)),
    "ef21-scaled": EF21(codec=Natural()),
    "entropy": ErrorFeedback(codec=Entropy(codec=Int8(block=32))),
    "entropy-sparse": ErrorFeedback(codec=Entropy(codec=TopK(density=0.05))),
    "momentum": MomentumCorrection(compressor=SPARSE),
    "momentum-clipped": MomentumCorrection(compressor=SPARSE, clip_norm=1.0),
    "momentum-unmasked": MomentumCorrection(
        compressor=ErrorFeedback(codec=RandomK(density=0.05)), masking=False
    ),
    "momentum-narrow": MomentumCorrection(
        compressor=ErrorFeedback(codec=Int4(block=32), rule=RULES["bfloat16"])
    ),
    "momentum-dense": MomentumCorrection(compressor=NoCompression()),
    "momentum-cast": MomentumCorrection(compressor=Bf16()),
    "dense-below": DenseBelow(compressor=SPARSE, elems=50),
    "scheduled": DensitySchedule(compressor=SPARSE, steps=2, densities=(0.5, 0.2)),
    "flushed": Warmup(dense=SPARSE, compressor=NoCompression(), steps=1),
    "flushed-narrow": Warmup(dense=SPARSE, compressor=Flushed(compressor=Int8(block=32)), steps=1),
}


@pytest.mark.parametrize("name", sorted(COMPRESSORS.keys() - {"oktopk"}))  # which refuses GPUs
def test_a_gpu_leaves_what_a_cpu_leaves_whenever_its_streams_work(name: str) -> None:
    check(by_default(name))
    check(by_default(name), dtype=torch.bfloat16, seed=1)


@pytest.mark.parametrize("name", ["int8", "fp16", "natural", "onebit_sgd", "threshold", "topk"])
def test_codecs_are_gathered_alike(name: str) -> None:
    compressor = by_default(name)
    codec = codec_of(compressor)
    assert codec is not None
    if choose_exchange(codec, RANKS) == "all_gather":
        compressor = codec  # with feedback it was gathered above
    check(compressor, exchange="all_gather")


@pytest.mark.parametrize("name", ["fp16", "bf16", "randomk"])
def test_codecs_are_summed_alike(name: str) -> None:
    check(COMPRESSORS[name].compressor(), exchange="all_reduce")


@pytest.mark.parametrize("rule", [None, RULES["int8"]], ids=["without", "int8"])
def test_codecs_are_added_alike_at_every_hop(rule: FeedbackRule | None) -> None:
    codec = Int8(block=32)
    check(codec if rule is None else ErrorFeedback(codec=codec, rule=rule), exchange="per_hop")


KEPT = [
    *(("int8", "decayed"), ("int8", "int8"), ("onebit", "bfloat16"), ("onebit", "peers")),
    *(("topk", "decayed"), ("topk", "int8"), ("unfused", "bfloat16"), ("unfused", "peers")),
]


@pytest.mark.parametrize(("codec", "rule"), KEPT)
def test_residuals_are_kept_alike(codec: str, rule: str) -> None:
    check(ErrorFeedback(codec=CODECS[codec], rule=RULES[rule]))


@pytest.mark.parametrize("compressor", FORMS.values(), ids=FORMS)
def test_other_forms_and_wrappers_do_alike(compressor: Compressor) -> None:
    check(compressor)


def test_the_choice_of_chunks_waits_for_no_gpu_even_where_ranks_overflow() -> None:
    with emulated_torch():
        world = LoopbackWorld(RANKS, model(torch.float32), ChunkedTopK(), device=DEVICE)
        given = [
            {name: on_gpu(x) for name, x in own.items()}
            for own in gradients(OVERFLOWING, torch.float32)
        ]
        with mock.patch.object(Stream, "synchronize") as wait:
            means = world.step(given, loss_scale=SCALES[OVERFLOWING])
            world.rollback()
        wait.assert_not_called()
        for found in snapshot(world, means):
            spoilt = {name for name in SHAPES if found[name].isnan().all()}
            assert spoilt == {"weight", "vector"}
            assert found["gain"].isfinite().all()


@contextmanager
def waits() -> Iterator[list[str]]:
    """Note what waits for the GPU."""
    found: list[str] = []

    def noted(owner: type, name: str) -> Any:
        does = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            found.append(f"{owner.__name__}.{name}")
            return does(*arguments)

        return mock.patch.object(owner, name, call)

    with noted(Stream, "synchronize"), noted(StreamedEmulated, "read"):
        yield found


def alone(aggregator: Aggregator, step: int, gradients: Sequence[torch.Tensor]) -> Numbers:
    """Run a step of a world of one rank, whose sums are what it has."""
    there = [on_gpu(x).reshape(-1) for x in gradients]
    for request in aggregator.run(there, StepContext(step, 0, 4.0)):
        assert isinstance(request, AllReduce)
    return dict(zip(MATRICES, there, strict=True))


@pytest.mark.parametrize("compressor", [PowerSGD(approx_rank=2), ACPSGD(approx_rank=3)])
def test_no_step_of_low_rank_waits_for_the_gpu_whatever_its_gradients_hold(
    compressor: LowRank,
) -> None:
    shapes = [ParameterInfo(i, n, shape) for i, (n, shape) in enumerate(MATRICES.items())]
    layout = Layout(0, tuple(Segment(p, 0, p.elems) for p in shapes))
    given = [[torch.randn(p.shape, generator=generator(step)) for p in shapes] for step in range(5)]
    given[2][0][0, 0] = torch.inf
    given[3] = [torch.zeros(p.shape) for p in shapes]
    with emulated_torch():
        world = World(0, 1, 0, "auto", State(DEVICE))
        with waits() as found:
            aggregator = compressor.aggregator(layout, world)
            means = [alone(aggregator, step, own) for step, own in enumerate(given)]
        assert found == []
        with waits() as found:
            float(means[0]["w"].sum())
        assert found == ["Stream.synchronize"]
        torch.cuda.synchronize()
        assert on_cpu(means[2]["w"]).isnan().all()
        assert all(on_cpu(means[2][name]).isfinite().all() for name in ("bias", "convolution"))
        assert not on_cpu(means[3]["bias"]).any()
        assert all(on_cpu(x).isfinite().all() for x in world.state.vectors.values())


def test_signs_with_an_unknown_flag_are_refused_on_a_gpu() -> None:
    payload = torch.zeros(Signs().wire_bytes(5000), dtype=torch.uint8)
    payload[3] = 2
    with emulated_torch(), pytest.raises(PayloadError, match="flag"):
        Signs().check(on_gpu(payload), 5000)


@pytest.mark.parametrize("levels", [30, 120])
@pytest.mark.parametrize("excess", [0, 1])
def test_sums_above_what_ranks_can_send_are_refused_on_a_gpu(levels: int, excess: int) -> None:
    hyper, most = THC(levels=levels, chunk=256), RANKS * levels + excess
    layout = Layout(0, (Segment(ParameterInfo(0, "w", (2048,)), 0, 2048),))
    with emulated_torch():
        unit = hyper.aggregator(layout, World(0, RANKS, 0, "auto", State(DEVICE)))
        assert isinstance(unit, THCAggregator)
        *_, request = islice(unit.run([on_gpu(torch.ones(2048))], StepContext(0)), 2)
        assert isinstance(request, AllReduce)
        values = request.values
        span = values.cut(values.span, RANKS)[1]
        sealed = torch.zeros(values.capacity_bytes(span), dtype=torch.uint8)
        unit._wire.seal(1, sealed, StepContext(0))
        sums = sealed[HEADER_BYTES:].numpy().view(np.uint8 if most < 256 else np.uint16)
        sums[-1] = most
        refused = pytest.raises(PayloadError, match="most possible") if excess else nullcontext()
        with refused:
            values.check(span, on_gpu(sealed), 1)
