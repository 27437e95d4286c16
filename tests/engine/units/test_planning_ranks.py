"""Plans from measurements, on real ranks: all follow them from the same step on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _rank_models import build
from _ranks import Group, same, settings
from _training import _backward, digest, registered
from compressa.schedulers import Profile

pytestmark = pytest.mark.ranks


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


@pytest.mark.parametrize("transport", ["tcp", "gloo-group"])
def test_all_ranks_follow_each_new_plan_from_the_same_step_on(transport: str, two: Group) -> None:
    def run(policy: str) -> list[dict[str, Any]]:
        config = settings(
            "int8",
            exchange={"transport": transport, "unit_bytes": 256, "unit_payload_bytes": 64},
            schedule={"policy": policy, "profile_steps": 2, "replan_steps": 3},
        )
        # Needed in the order in which backward readies them: the opposite of what is assumed.
        needs = {"0.weight": 0.9, "0.bias": 0.9, "2.weight": 0.5, "2.bias": 0.5}
        return two.run(train_and_tell_plans, config=config, steps=12, needs=needs)

    planned, unplanned = run("priority"), run("fifo")
    same([result["step_plans"] for result in planned])
    same([result["parameters"] for result in planned + unplanned])
    assert unplanned[0]["profile"] is None
    first_steps = [first for first, _, _ in planned[0]["step_plans"]]
    # Measured from step 0 on, told at step 2, published at step 3, followed from step 5 on.
    assert first_steps[4] == 0
    assert first_steps[5] == 5
    assert all(first in {0, 5, 11} for first in first_steps)
    before, after = planned[0]["step_plans"][4][1], planned[0]["step_plans"][5][1]
    assert sorted(before) == sorted(after)
    assert before != after
    profile = Profile.of(planned[0]["profile"])
    assert profile.forward_s == 1.0
    assert all(unit.encode_s > 0 and unit.decode_s > 0 for unit in profile.units)
    readies = [unit.ready_s for unit in profile.units]
    assert max(readies) == profile.backward_s > 0
