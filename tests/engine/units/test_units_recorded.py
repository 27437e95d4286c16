"""Units whose kernels take one scope: their launches are noted once, and alike ones go together.

What they leave is what a CPU leaves that takes scope by scope, bit for bit; also by CUDA graphs.
"""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from _gpu_units import (
    MANY,
    RULE,
    SIZES,
    Costs,
    Unit,
    costs_of,
    counted_launches,
    gradients_of,
    layout_of,
    same,
    steps_of,
)
from compressa.kernels import cuda
from compressa.kernels.cuda import _many
from emulated_streams import DEVICE
from emulated_torch import StreamedEmulated, as_cuda, emulated_torch, on_gpu

from compressa.aggregators.base import CPU, StepContext
from compressa.aggregators.chunked_topk import ChunkedTopK
from compressa.aggregators.feedback import FeedbackRule
from compressa.arrays import as_array
from compressa.codecs import (
    Bf16,
    Codec,
    DeMo,
    Fp8,
    Fp16,
    Natural,
    OneBitSGD,
    RandomK,
    TopK,
)
from compressa.compressor import Compressor
from compressa.errors import PayloadError
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator
from compressa.wrappers import ErrorFeedback

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

CODECS: dict[str, Codec] = {
    "topk": TopK(density=0.1),
    "topk-bits": TopK(density=0.02, indices="bits", value_dtype="bfloat16"),
    "topk-bitmap": TopK(density=0.3, indices="bitmap", value_dtype="float16"),
    "fp8": Fp8(block=128),
    "fp8-32": Fp8(block=32, format="e5m2"),
    "natural": Natural(),
    "natural-3-levels": Natural(levels=3, block=64),
    "natural-7-levels": Natural(levels=7, norm="max"),
    "onebit_sgd": OneBitSGD(),
    "onebit_sgd-40": OneBitSGD(group=40),
    "demo": DeMo(chunk=16, kept=3),
    "demo-tiles": DeMo(chunk=16, kept=40, columns=24),
    "demo-16-bits": DeMo(chunk=16, kept=40, columns=24, value_dtype="bfloat16"),
    "fp16": Fp16(),
    "bf16": Bf16(),
}
CASES = [
    *((name, torch.float32, RULE) for name in CODECS),
    *((name, torch.float32, None) for name in ("topk", "natural")),
    *((name, torch.bfloat16, RULE) for name in ("topk", "fp8")),
    ("topk-bits", torch.float16, None),
    ("natural-7-levels", torch.bfloat16, None),
    ("onebit_sgd", torch.bfloat16, RULE),
    ("demo", torch.float16, RULE),
    ("natural", torch.float16, None),
    ("bf16", torch.bfloat16, None),
]
SIX = [3000, 64, 40_000, 256, 9000, 10]


@pytest.mark.parametrize(("name", "dtype", "rule"), CASES)
def test_scopes_leave_what_they_leave_one_by_one(
    name: str, dtype: torch.dtype, rule: FeedbackRule | None
) -> None:
    due = steps_of(CODECS[name], CPU, rule, dtype, sizes=SIZES)
    with emulated_torch():
        found = steps_of(CODECS[name], DEVICE, rule, dtype, sizes=SIZES)
    for ours, theirs in zip(found, due, strict=True):
        assert same(ours, theirs)


def test_more_scopes_than_a_launch_takes_go_by_several() -> None:
    due = steps_of(CODECS["topk"], CPU, RULE, torch.float32, sizes=MANY)
    with emulated_torch(), counted_launches() as launched:
        found = steps_of(CODECS["topk"], DEVICE, RULE, torch.float32, sizes=MANY)
    for ours, theirs in zip(found, due, strict=True):
        assert same(ours, theirs)
    assert launched["survey_once"] == 2 * 2 * 3  # of each payload and step


@pytest.mark.parametrize(
    ("codec", "costs"),
    [
        # Seven select, three write indices; one clears the sums, six read indices, and two for
        # each rank add; the last passes on what a check has found.
        (TopK(density=0.01), Costs(7 + 3, 1 + 6 + 2 * 2 + 1)),
        (Fp8(), Costs(1, 1)),
        (Natural(), Costs(1, 1)),
        # Of sums there is no kernel: one clears them, and one for each rank adds.
        (Natural(levels=3), Costs(1, 1 + 2)),
        (OneBitSGD(group=64), Costs(1, 1 + 2)),
        # Here a check as well, and what passes on what it has found.
        (DeMo(), Costs(1, 1 + 2 * 2 + 1)),
        (DeMo(columns=64), Costs(1, 1 + 2 * 2 + 1)),
        (Fp16(), Costs(1, 1)),
    ],
    ids=lambda x: x.name if isinstance(x, Codec) else "",
)
def test_six_scopes_take_as_many_launches_and_waits_as_one(codec: Codec, costs: Costs) -> None:
    assert costs_of(codec, SIX) == costs_of(codec, SIX[2:3]) == costs


def test_what_fills_the_gpu_by_itself_goes_alone() -> None:
    with emulated_torch(), counted_launches() as launched:
        unit = Unit(Fp8(block=128), [64, 3000, 700], ranks=1)  # of 1, 3 and 1 blocks
        with mock.patch.object(_many, "_FILLING", 2):
            payload = unit.scopes.buffer()
            gradients = [on_gpu(x) for x in gradients_of([64, 3000, 700], 0, torch.float32)]
            unit.scopes.encode(gradients, StepContext(0), payload)
    assert launched["quantize_of_128"] == 2


SELECTED = {
    **dict.fromkeys(["begin", "survey_once", "survey_again", "count_chosen", "write_chosen"], 1),
    "refine": 2,
}
SUMMED: dict[str, tuple[Compressor, dict[str, int]]] = {
    "chunked_topk": (
        ChunkedTopK(density=0.1, chunk=64),
        {"absorb_by_warps": 1, **SELECTED, "take_chunks": 1, "add_chunks": 1},
    ),
    # Its indices are drawn twice, for what is sent and for what has come.
    "randomk": (
        ErrorFeedback(codec=RandomK(density=0.01)),
        {"random_words": 2, "stratified_u32": 2, "keep_all": 1, "take_out": 1, "scatter_add": 1},
    ),
}


@pytest.mark.parametrize("name", SUMMED)
def test_sums_of_six_scopes_take_as_many_launches_as_one(name: str) -> None:
    compressor, due = SUMMED[name]
    parameters, counts = [segment.parameter for segment in layout_of(SIX).segments], []
    for infos in (parameters, parameters[2:3]):
        with emulated_torch(), mock.patch.object(StreamedEmulated, "processors", 132):
            world = LoopbackWorld(2, infos, compressor, unit_bytes=1 << 20, device=DEVICE)
            given = [
                {p.name: on_gpu(torch.randn(p.shape, generator=generator(rank))) for p in infos}
                for rank in range(2)
            ]
            with counted_launches() as launched:
                world.step(given)
            assert world.unit_count == 1
            counts.append(launched)
    assert counts[0] == counts[1]
    assert {each: counts[0][each] for each in due} == {each: 2 * n for each, n in due.items()}


class Bench:
    """A unit on an emulated GPU beside the same on a CPU, step by step, whose graphs are counted.

    Attributes:
        captured: How many graphs were made.
        replayed: How often one was started.
    """

    def __init__(self, codec: Codec, ranks: int = 2) -> None:
        self.unit, self._due = (Unit(codec, SIZES, device, RULE, ranks) for device in (DEVICE, CPU))
        self.captured = self.replayed = 0
        self._steps = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        graph = StreamedEmulated.graph

        def noted(device: Any, launches: Any) -> Callable[[], None]:
            self.captured += 1
            replay = graph(device, launches)

            def again() -> None:
                self.replayed += 1
                replay()

            return again

        with mock.patch.object(StreamedEmulated, "graph", noted), cuda.graphs():
            yield

    def step(self, bucket: torch.Tensor, loss_scale: float = 1.0) -> None:
        """A step with other gradients in a bucket; its bits are those of the CPU."""
        context = StepContext(self._steps, loss_scale=loss_scale)
        values = gradients_of(SIZES, self._steps, torch.float32)
        for own, x in zip(bucket.split(SIZES), values, strict=True):
            own.copy_(x)
        given = list(as_cuda(bucket).split(SIZES))
        found = self.unit.all_there(given, self.unit.step(given, context))
        assert same(found, self._due.all_there(values, self._due.step(values, context)))
        self._steps += 1


def test_what_is_launched_for_the_third_time_is_captured_and_replayed_from_then_on() -> None:
    with emulated_torch():
        bench, bucket = Bench(CODECS["topk"]), torch.zeros(sum(SIZES))
        with bench.counted():
            for captured, replayed in ((0, 0), (0, 0), (3, 3), (3, 6), (3, 9)):
                bench.step(bucket)
                # Two payloads are encoded, and their mean is decoded.
                assert (bench.captured, bench.replayed) == (captured, replayed)
        bench.step(bucket)  # as outside of the engine's threads
        assert bench.replayed == 9


def test_buffers_that_move_are_captured_anew_and_old_addresses_are_never_replayed() -> None:
    with emulated_torch():
        bench, buckets = Bench(CODECS["topk"]), [torch.zeros(sum(SIZES)) for _ in range(2)]
        with bench.counted():
            for _ in range(4):
                bench.step(buckets[0])
            assert (bench.captured, bench.replayed) == (3, 6)
            for _ in range(2):
                bench.step(buckets[1])
                assert (bench.captured, bench.replayed) == (3, 6)
            buckets[0].fill_(torch.nan)
            bench.step(buckets[1])
            assert (bench.captured, bench.replayed) == (6, 9)
            assert buckets[0].isnan().all()
            state = bench.unit.state
            for name, residual in state.vectors.items():  # as a checkpoint does
                state.vectors[name] = residual.clone()
            bench.step(buckets[1])
            assert (bench.captured, bench.replayed) == (6, 10)  # only the mean's


def test_a_loss_scale_that_changes_is_noted_and_captured_anew() -> None:
    with emulated_torch():
        bench, bucket = Bench(CODECS["topk"]), torch.zeros(sum(SIZES))
        with bench.counted():
            for loss_scale in (1.0, 1.0, 1.0, 64.0, 64.0, 64.0):
                bench.step(bucket, loss_scale)
        assert (bench.captured, bench.replayed) == (5, 8)


def test_one_launch_and_numbers_of_each_step_are_no_graph() -> None:
    for codec in (Natural(), Fp8(block=128)):
        with emulated_torch(), mock.patch.object(StreamedEmulated, "processors", 132):
            bench, bucket = Bench(codec), torch.zeros(sum(SIZES))
            with bench.counted():
                for _ in range(5):
                    bench.step(bucket)
            assert bench.captured == 0


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize("codec", [TopK(density=0.1, indices="bits"), DeMo(chunk=16, kept=3)])
def test_a_check_tells_once_what_was_wrong(codec: Codec, later: bool, replayed: bool) -> None:
    with emulated_torch(), cuda.graphs() if replayed else nullcontext():
        unit = Unit(codec, SIZES)
        gradients = [on_gpu(x) for x in gradients_of(SIZES, 0, torch.float32)]
        payload = unit.scopes.encode(gradients, StepContext(0), unit.scopes.buffer())
        for _ in range(3):
            unit.scopes.average([payload], gradients, StepContext(0))
        good = payload.clone()
        payload[24:].fill_(0xFF)
        if not later:
            with pytest.raises(PayloadError, match=f"{codec.name}: what a payload holds"):
                unit.scopes.average([payload], gradients, StepContext(0))
        else:
            found = torch.zeros(1, dtype=torch.int64, device=DEVICE)
            for content, due in ((payload.clone(), 1), (good, 0), (payload.clone(), 1)):
                payload.copy_(content)
                found.zero_()
                with cuda.answers_later(lambda: as_array(found).view(np.uint64)):
                    unit.scopes.average([payload], gradients, StepContext(0))
                assert found.item() == due
        payload.copy_(good)
        unit.scopes.average([payload], gradients, StepContext(0))


def test_gradients_and_residuals_that_are_let_go_are_not_kept() -> None:
    with emulated_torch():
        unit, gone = Unit(CODECS["topk"], SIZES, rule=RULE), []
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
