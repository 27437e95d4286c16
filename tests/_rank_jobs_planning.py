"""What real ranks do in tests of plans that are made from measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs import _backward, digest, registered
from _rank_models import build


def train_and_tell_plans(
    *, config: Any, steps: int, needs: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Train; return the parameters' digest, and the step plan that each step followed."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    with registered(net, config) as (wrapped, handle):
        planning = handle.engine.planning
        planning.forward(needs or {}, forward_s=1.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        step_plans = []
        for step in range(steps):
            optimizer.zero_grad()
            _backward(wrapped, rank, step, 1, torch.float32)
            optimizer.step()
            step_plan = planning.step_plan
            step_plans.append(
                [step_plan.plan.first_step, step_plan.plan.order, list(step_plan.launches)]
            )
        profile = planning.profile
        return {
            "parameters": digest(net),
            "step_plans": step_plans,
            "profile": None if profile is None else profile.numbers(),
        }
