"""Ranks that train by servers, or by pairs, at a pace of their own: called on real ranks."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from _attached import Regression, sgd, take_step, values_of
from _averaging_oracle import MOMENTUM, RATE, batch
from torch import nn

import compressa


def served(
    *, config: Any, steps: int, slow_s: float = 0.0, leave: bool = False, rate: float = RATE
) -> list[Any]:
    """Train, or serve; return the loss at the beginning and in the end, and where that is.

    Args:
        config: Of a strategy with servers.
        steps: Of each rank.
        slow_s: How much longer rank 0 takes for a step.
        leave: Whether ranks close without `sync`.
        rate: Of SGD.
    """
    model, began_s = Regression(), time.monotonic()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    with compressa.attach(model, optimizer, config) as strategy:
        if strategy.serves:
            strategy.serve()
            return []
        first = loss_of(model)
        for number in range(steps):
            time.sleep(slow_s if dist.get_rank() == 0 else 0.0)
            take_step(strategy, number)
        seconds = time.monotonic() - began_s
        if not leave:
            strategy.sync()
        return [first, loss_of(model), values_of(model), strategy.stats().steps, seconds]


def loss_of(model: nn.Module) -> float:
    """Of all ranks' first batches."""
    with torch.no_grad():
        pairs = [[torch.from_numpy(a).float() for a in batch(r, 0)] for r in range(3)]
        return float(sum((model(x) - y).square().mean() for x, y in pairs))


def trains_not(*, config: Any) -> list[str]:
    """Call on a server what only ranks that train may, and the other way round."""
    model, said = Regression(), []
    with compressa.attach(model, sgd(model), config) as strategy:
        calls = [strategy.step, strategy.sync] if strategy.serves else [strategy.serve]
        for call in calls:
            try:
                call()
            except compressa.StateError as error:
                said.append(str(error))
        if strategy.serves:
            strategy.serve()
    return said


def uneven(*, config: Any) -> list[Any]:
    """Only rank 1 takes steps between two calls of sync; return where all are then."""
    model = Regression()
    with compressa.attach(model, sgd(model), config) as strategy:
        take_step(strategy, 0)
        strategy.sync()
        if dist.get_rank():
            take_step(strategy, 1)
        strategy.sync()
        return [values_of(model)]


def left_early(*, config: Any) -> list[float]:
    """Rank 0 adds ten steps of one and leaves; return what the others hold after `sync`."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with compressa.attach(model, optimizer, config) as strategy:
        if dist.get_rank() == 0:
            for _ in range(10):
                model.weight.grad = -torch.ones_like(model.weight)
                strategy.step()
    if dist.get_rank() == 0:
        return [10.0]
    return [float(model.weight)]
