"""What real ranks do in tests of saved profiles."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs import _backward, registered
from _rank_jobs_overlap import overlapped
from _rank_models import build

from compressa.hooks import Handle


def save(*, config: Any, path: str, steps: int, overlap: bool = False) -> dict[str, Any]:
    """Train, save the profile, and return what this rank's engine knows of it."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    if overlap:
        with overlapped(net, optimizer, config) as model:
            return _train_and_save(model, model.handle, optimizer, path, steps)
    with registered(net, config) as (wrapped, handle):
        return _train_and_save(wrapped, handle, optimizer, path, steps)


def _train_and_save(
    model: Any, handle: Handle, optimizer: torch.optim.Optimizer, path: str, steps: int
) -> dict[str, Any]:
    for step in range(steps):
        optimizer.zero_grad()
        _backward(model, dist.get_rank(), step, 1, torch.float32)
        optimizer.step()
    handle.save_profile(path)
    planning = handle.engine.planning
    return {
        "numbers": planning.profiler.profile().numbers(),
        "units": planning.unit_names,
        "parameters": [p.name for p in handle.engine.parameters],
        "transfers": len(planning.step_plan.plan.order),
    }
