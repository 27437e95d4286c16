"""Training that is saved, and what is loaded goes on."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from _rank_models import build
from _training import _optimizer, registered, run_steps, state_digest


def save(*, config: Any, folder: str, model: str = "mlp", steps: int = 2) -> str:
    """Train and save; return this rank's state digest."""
    net = build(model, dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        run_steps(wrapped, _optimizer(net), 0, steps)
        handle.save(folder)
        return state_digest(handle)


def load(*, config: Any, folder: str, model: str = "mlp") -> str:
    """Load without training; return this rank's state digest."""
    with registered(model, config) as (_, handle):
        handle.load(folder)
        return state_digest(handle)
