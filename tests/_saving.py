"""Training that is saved, and what is loaded goes on."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _training import _optimizer, registered, state_digest


def _steps(wrapped: Any, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    for step in range(first, first + count):
        optimizer.zero_grad()
        loss_of(wrapped, dist.get_rank(), step, torch.float32).backward()
        optimizer.step()


def save(*, config: Any, folder: str, model: str = "mlp", steps: int = 2) -> str:
    """Train and save; return this rank's state digest."""
    net = build(model, dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        _steps(wrapped, _optimizer(net), 0, steps)
        handle.save(folder)
        return state_digest(handle)


def load(*, config: Any, folder: str, model: str = "mlp") -> str:
    """Load without training; return this rank's state digest."""
    with registered(model, config) as (_, handle):
        handle.load(folder)
        return state_digest(handle)
