"""Low-rank aggregators on tensors of a GPU, as a CPU emulates one: the same bits as on a CPU."""

from __future__ import annotations

import pytest
import torch
from emulated_cuda import on_emulated_cuda
from emulated_torch import DEVICE, emulated_torch, on_cpu, on_gpu

from compressa.aggregators.acpsgd import ACPSGD
from compressa.aggregators.base import CPU
from compressa.aggregators.factors import LowRank
from compressa.aggregators.powersgd import PowerSGD
from compressa.parameters import ParameterInfo
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
