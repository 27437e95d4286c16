"""Low-rank aggregators on tensors of a GPU, as a CPU emulates one: the same bits as on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_cuda import on_emulated_cuda
from emulated_streams import DEVICE, Stream
from emulated_torch import StreamedEmulated, emulated_torch, on_cpu, on_gpu

from compressa.aggregators.acpsgd import ACPSGD
from compressa.aggregators.base import CPU, Aggregator, AllReduce, State, StepContext, World
from compressa.aggregators.factors import FactorSum, LowRank
from compressa.aggregators.powersgd import PowerSGD
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld

pytestmark = on_emulated_cuda

PARAMETERS = [
    ParameterInfo(0, "w", (32, 64)),
    ParameterInfo(1, "bias", (17,)),
    ParameterInfo(2, "convolution", (9, 3, 3, 3)),
]
RANKS, OVERFLOW, ZERO = 3, 2, 3  # and the steps in which there are such gradients


def gradients_of(step: int) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(step)
    made = [
        {p.name: torch.randn(p.shape, generator=random) for p in PARAMETERS} for _ in range(RANKS)
    ]
    if step == OVERFLOW:
        made[1]["w"][0, 0] = torch.inf
    if step == ZERO:
        made = [{name: torch.zeros_like(x) for name, x in own.items()} for own in made]
    return made


def trained(compressor: LowRank, device: torch.device) -> list[torch.Tensor]:
    """The means and the state of a few steps; the one with an overflow is skipped."""
    world, found = LoopbackWorld(RANKS, PARAMETERS, compressor, device=device), []
    for step in range(5):
        gradients = gradients_of(step)
        if device.type == "cuda":
            gradients = [{name: on_gpu(x) for name, x in own.items()} for own in gradients]
        means = world.step(gradients, loss_scale=4.0, hold_zeros=True)
        if step == OVERFLOW:
            world.rollback()
        found += [x.clone() for own in means for x in own.values()]
    found += [state.vectors[key] for state in world.states for key in sorted(state.vectors)]
    if device.type == "cuda":
        torch.cuda.synchronize()
        found = [on_cpu(x) for x in found]
    return found


@pytest.mark.parametrize("compressor", [PowerSGD(approx_rank=2), ACPSGD(approx_rank=3)])
def test_means_and_state_are_those_of_a_cpu(compressor: LowRank) -> None:
    due = trained(compressor, CPU)
    for seed in (None, 0, 1):
        with emulated_torch(seed):
            found = trained(compressor, DEVICE)
        for ours, theirs in zip(found, due, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


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


def run(aggregator: Aggregator, step: int) -> list[torch.Tensor]:
    """Run a step of a world of one rank, whose sums are what it has."""
    gradients = [on_gpu(x).reshape(-1) for x in gradients_of(step)[1].values()]
    for request in aggregator.run(gradients, StepContext(step, 0, 4.0)):
        assert isinstance(request, AllReduce)
    return gradients


@pytest.mark.parametrize("compressor", [PowerSGD(approx_rank=2), ACPSGD(approx_rank=3)])
def test_no_step_waits_for_the_gpu_whatever_its_gradients_hold(compressor: LowRank) -> None:
    layout = Layout(0, tuple(Segment(p, 0, p.elems) for p in PARAMETERS))
    with emulated_torch():
        world = World(0, 1, 0, "auto", State(DEVICE))
        with waits() as found:
            aggregator = compressor.aggregator(layout, world)
            means = {step: run(aggregator, step) for step in range(5)}
        assert found == []
        with waits() as found:
            float(means[0][0].sum())
        assert found == ["Stream.synchronize"]
        torch.cuda.synchronize()
        assert on_cpu(means[OVERFLOW][0]).isnan().all()
        assert all(on_cpu(x).isfinite().all() for x in means[OVERFLOW][1:])
        assert not any(on_cpu(x).any() for x in means[ZERO][1:2])
        assert all(on_cpu(x).isfinite().all() for x in world.state.vectors.values())


def test_factors_of_whole_16_bytes_lie_in_front_and_none_is_lost() -> None:
    sums = FactorSum([(3, 5), (2, 6), (1, 7), (4, 3)], [3, 4], World(0, 1, 0, "auto", State()))
    for number, x in enumerate((*sums.values, *sums.vectors)):
        x.fill_(number)
    buffer = sums.mean().values.dense
    assert buffer is not None
    due = [1] * 12 + [3] * 12 + [0] * 15 + [2] * 7 + [4] * 3 + [5] * 4
    assert buffer.tolist() == due
    assert [f.shape for f in sums.factors] == [(3, 5), (2, 6), (1, 7), (4, 3)]
    assert all((f == number).all() for number, f in enumerate(sums.factors))
