"""A job in which every parameter has a compressor of its own: one run for all of them."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch
import torch.distributed as dist
from _training import registered
from torch import nn

from compressa.compressor import Compressor

SHAPE = (40, 33)


class ManyWeights(nn.Module):
    """Its loss is linear in its parameters, so that each gradient is the factor it is given."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(SHAPE) for _ in range(count))

    def forward(self, *factors: torch.Tensor) -> torch.Tensor:
        parts = [(f * w).sum() for f, w in zip(factors, self.weights, strict=True)]
        return torch.stack(parts).sum()


def section(compressor: Compressor) -> dict[str, Any]:
    """Return what a configuration says of a compressor."""
    fields = {f.name: getattr(compressor, f.name) for f in dataclasses.fields(compressor)}
    return {"name": compressor.name, **fields}


def gradients(count: int, rank: int, step: int) -> list[torch.Tensor]:
    """Return the gradient of each parameter."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(SHAPE, generator=generator) for _ in range(count)]


def digest(tensor: torch.Tensor) -> str:
    """Return some bits that tell all of a tensor's apart."""
    return hashlib.sha256(tensor.contiguous().cpu().numpy().tobytes()).hexdigest()[:12]


def means(
    *, config: Any, count: int, steps: int, mutation: str | None = None, device: str = "cpu"
) -> list[list[str]]:
    """Return, by step and parameter, a digest of the mean gradient."""
    net = ManyWeights(count).to(device)
    result = []
    with registered(net, config, mutation=mutation) as (wrapped, _):
        for step in range(steps):
            net.zero_grad()
            own = [factor.to(device) for factor in gradients(count, dist.get_rank(), step)]
            wrapped(*own).backward()
            result.append([digest(weight.grad) for weight in net.weights])
    return result
