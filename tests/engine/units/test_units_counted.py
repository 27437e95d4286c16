"""Units whose codecs send as many values as they find: the host waits once for all scopes.

What they leave is what a CPU leaves that takes scope by scope, bit for bit.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext

import pytest
import torch
from _gpu_units import RULE, SIZES, Costs, Unit, costs_of, gradients_of, number, same, steps_of
from compressa.kernels import cuda
from emulated_streams import DEVICE
from emulated_torch import emulated_torch, on_gpu

from compressa.aggregators.base import CPU, StepContext
from compressa.aggregators.feedback import FeedbackRule
from compressa.codecs import DGC, AdaComp, Codec, SIDCo, Threshold
from compressa.errors import PayloadError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

CODECS: dict[str, Codec] = {
    "threshold": Threshold(threshold=0.2, max_density=0.3),
    "threshold-rms": Threshold(threshold=2.0, unit="rms", value_dtype="bfloat16"),
    "dgc": DGC(density=0.05),
    "dgc-bitmap": DGC(density=0.1, value_dtype="float16", indices="bitmap"),
    "sidco": SIDCo(density=0.02),
    "sidco-16": SIDCo(density=0.2, stages=16, indices="bits"),
    "adacomp": AdaComp(bin_elems=20, max_density=0.3),
    "adacomp-few": AdaComp(bin_elems=8, max_density=0.01, indices="elias_fano"),
}
CASES = [
    *((name, torch.float32, RULE) for name in CODECS),
    ("threshold", torch.bfloat16, RULE),
    ("dgc", torch.float16, None),
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


@pytest.mark.parametrize(
    ("codec", "choose"),
    [
        (Threshold(threshold=2.0, unit="rms", indices="bits"), 7),
        (DGC(density=0.01, indices="bits"), 11),
        (SIDCo(density=0.01, indices="bits"), 12),
        (AdaComp(bin_elems=50, indices="bits"), 6),
    ],
    ids=lambda x: x.name if isinstance(x, Codec) else "",
)
def test_six_scopes_take_as_many_launches_and_waits_as_one(codec: Codec, choose: int) -> None:
    # To encode, what chooses; one for the counts, and two for values and bits of the indices. To
    # average, one lists the counts of both payloads, two read indices, one clears the sums, two for
    # each rank add, and two are for what a check finds.
    due = Costs(choose + 3, 1 + 2 + 1 + 2 * 2 + 2, encode_waits=1, check_waits=1, average_waits=1)
    assert costs_of(codec, SIX) == costs_of(codec, SIX[2:3]) == due


COUNTED = [
    Threshold(threshold=0.2),
    DGC(density=0.01),
    SIDCo(density=0.01),
    AdaComp(bin_elems=2500, max_density=0.2),
]


@pytest.mark.parametrize("codec", COUNTED, ids=lambda codec: codec.name)
def test_long_scopes_some_of_them_not_finite_leave_what_they_leave_on_a_cpu(codec: Codec) -> None:
    left = []
    for device in (CPU, DEVICE):
        with nullcontext() if device == CPU else emulated_torch():
            unit = Unit(codec, [0, *SIX], device, RULE)
            for step in range(2):
                values = gradients_of([0, *SIX], step, torch.float32)
                values[2][7], values[4][100] = torch.nan, torch.inf
                given = values if device == CPU else [on_gpu(x) for x in values]
                payload = unit.step(given, StepContext(step))
            left.append(unit.all_there(given, payload))
    assert same(*left)


FRONTS = [(24, 0), (24, -1), (24, 65), (32, 0), (32, -1), (32, 4000)]
"""Indices of the first scope's length and count, and what is written there."""


@pytest.mark.parametrize("later", [True, False])
def test_lengths_and_counts_that_are_wrong_are_refused_before_anything_is_written(
    later: bool,
) -> None:
    with emulated_torch():
        unit, step = Unit(Threshold(threshold=0.2, indices="bits"), SIX), StepContext(0)
        gradients = [on_gpu(x) for x in gradients_of(SIX, 0, torch.float32)]
        good = unit.scopes.encode(gradients, step, unit.scopes.buffer()).clone()
        received = [good[:-8]]
        for index, wrong in FRONTS:
            bad = good.clone()
            bad[index : index + 4].view(torch.int32).fill_(wrong)
            received.append(bad)
        before = unit.all_there(gradients)
        for bad in received:
            with (
                cuda.answers_later(number) if later else nullcontext(),
                pytest.raises(PayloadError),
            ):
                unit.scopes.average([good, bad], gradients, step)
            assert same(unit.all_there(gradients), before)
        unit.scopes.average([good, good], gradients, step)
        assert not same(unit.all_there(gradients), before)
