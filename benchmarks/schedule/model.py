"""The model: a perceptron of equal layers, as large as its communication should be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

LAYERS = 48
WIDTH = 150
ELEMS = LAYERS * WIDTH * (WIDTH + 1)
"""Of its parameters: 4.3 MB of float32."""

_RATE, _MOMENTUM = 0.01, 0.9


def perceptron() -> nn.Module:
    """Return the model, with the same values on every rank."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    return torch.optim.SGD(model.parameters(), _RATE, _MOMENTUM)


@dataclass(frozen=True)
class Stepped:
    """How long a training step took, and its forward pass alone."""

    step_s: float
    forward_s: float


def train_step(
    model: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
) -> Stepped:
    """Do a training step on a batch, an array of `WIDTH` columns."""
    begin_s = time.perf_counter()
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    forward_s = time.perf_counter() - begin_s
    loss.backward()
    optimizer.step()
    return Stepped(time.perf_counter() - begin_s, forward_s)
