"""A run that was interrupted goes on bit for bit, in new processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from _rank_models import build
from _ranks import Group, Pools, same, settings
from _training import _optimizer, digest, registered, run_steps, state_digest, train

pytestmark = pytest.mark.ranks


def rewind(*, config: Any, folder: str, total: int, half: int) -> dict[str, Any]:
    """Save in mid-run, train to the end, load and train to the end again."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net, momentum=0.0)
        run_steps(wrapped, optimizer, 0, half)
        handle.save(folder)
        weights = {key: value.clone() for key, value in net.state_dict().items()}
        ends = []
        for _ in range(2):
            run_steps(wrapped, optimizer, half, total - half)
            ends.append([digest(net), state_digest(handle)])
            net.load_state_dict(weights)
            handle.load(folder)
        return {"first": ends[0], "second": ends[1]}


def interrupted(
    pools: Pools,
    fresh: Callable[[int], Group],
    size: int,
    folder: Path,
    config: dict[str, Any],
    mutation: str | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the results of 20 steps straight, and of 10 + save + load in new processes + 10."""
    straight = pools.get(size).run(train, config=config, steps=20)
    pools.get(size).run(train, config=config, steps=10, save=str(folder))
    resumed = fresh(size).run(train, config=config, steps=10, load=str(folder), mutation=mutation)
    return straight, resumed


DENSE = {"steps": 4}
CODED = {"steps": 4, "compressor": {"name": "onebit"}}
CASES = {
    # From four ranks on, int8 and onebit scatter-reduce with feedback at the owner.
    "int8": (4, settings("int8")),
    "onebit": (4, settings("onebit")),
    "random bits after a warm-up": (2, settings("randomk", warmup=CODED)),
    "within a warm-up": (2, settings("topk", warmup={**CODED, "steps": 14})),
    # A run that resumes has never been in the phase whose state it loads.
    "topk after a dense warm-up": (2, settings("topk", warmup=DENSE)),
    "powersgd after a dense warm-up": (
        2,
        settings("powersgd", warmup=DENSE, exchange={"transport": "gloo-group"}),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_resume_repeats_every_bit(
    case: tuple[int, Any], pools: Pools, fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    size, config = case
    straight, resumed = interrupted(pools, fresh, size, tmp_path, config)
    assert same([r["parameters"] for r in straight]) == same([r["parameters"] for r in resumed])
    assert [r["state"] for r in straight] == [r["state"] for r in resumed]


@pytest.mark.parametrize(("transport", "total", "half"), [("tcp", 5, 4), ("gloo-group", 6, 2)])
def test_a_run_can_go_back_to_its_own_checkpoint(
    transport: str, total: int, half: int, two: Group, tmp_path: Path
) -> None:
    config = settings("topk", exchange={"transport": transport}, warmup={"steps": 3})
    folder = str(tmp_path / "compressa")
    for result in two.run(rewind, config=config, folder=folder, total=total, half=half):
        assert result["first"] == result["second"]


def test_resume_needs_the_residuals(
    pools: Pools, fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    """The check is checked: residuals that are forgotten on load change the bits."""
    mutation = "forget residuals on load"
    straight, resumed = interrupted(pools, fresh, 2, tmp_path, settings("topk"), mutation)
    assert straight[0]["parameters"] != resumed[0]["parameters"]
