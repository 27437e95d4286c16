"""Units leave DDP's buckets one by one or together, as what was measured says, with equal bits."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
import torch.distributed as dist
from _ranks import Group, same
from _training import digest, registered, state_digest
from torch import nn

from compressa.tracing import reader

pytestmark = pytest.mark.ranks

FEW = {"profile_steps": 2, "replan_steps": 3}
SIDE = 1100  # a layer fills a unit
VIEW = {"gradient_as_bucket_view": True}


def config(compressor: str, unit_bytes: int | None = None, policy: str = "fifo") -> dict[str, Any]:
    exchange = {"transport": "tcp"} | ({"unit_bytes": unit_bytes} if unit_bytes else {})
    schedule = FEW | {"policy": policy}
    return {"compressor": compressor, "exchange": exchange, "schedule": schedule}


def train_wide(*, config: Any, steps: int, path: str = "") -> dict[str, Any]:
    """Train three layers of a unit each; say how each step was done, and what it gives."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(3)))
    inputs = torch.randn(steps, 4, SIDE)
    with registered(net, config, ddp=VIEW) as (wrapped, handle):
        optimizer = torch.optim.SGD(wrapped.parameters(), 1e-4, 0.9)
        done, messages = [], []
        with handle.trace(path) if path else contextlib.nullcontext():
            for step in range(steps):
                optimizer.zero_grad()
                wrapped(inputs[step]).square().mean().backward()
                optimizer.step()
                stats = handle.stats()
                done.append(stats.overlap)
                messages.append(stats.messages)
        sent = [after - before for before, after in pairwise(messages)]
        return {
            "bits": [digest(wrapped), state_digest(handle)],
            "ways": [(each.way, each.measuring) for each in done],
            "steps_s": [each.steps_s for each in done],
            "messages": [0, *sent],
        }


def test_the_hook_finds_whether_units_go_together(two: Group, tmp_path: Path) -> None:
    how = {"config": config("int8"), "steps": 120, "path": str(tmp_path / "t.json")}
    found = two.run(train_wide, **how)
    ways = same([each["ways"] for each in found])
    # Told in step 2, followed from 5 on; measured from 6 on; tried in turn from 11 on, six steps
    # each, until one clearly leads: in three cycles of both, or in nine at most.
    assert ways[:11] == [["at once", False]] * 11
    chosen = ways.index([ANY, False], 11)
    assert chosen in range(11 + 5 * 6, 11 + 17 * 6 + 1, 2 * 6)
    assert ways[11:chosen] == [
        [("together", "at once")[number // 6 % 2], True] for number in range(chosen - 11)
    ]
    deferred_s, at_once_s, together_s = found[0]["steps_s"][chosen]
    assert deferred_s is None
    assert (ways[chosen][0] == "together") is (together_s < 0.98 * at_once_s)
    for each in found:
        sent = {"at once": set(), "together": set()}
        for (way, _), messages in zip(ways, each["messages"], strict=True):
            sent[way].add(messages)
        assert max(sent["together"]) < min(sent["at once"] - {0})
    spans = reader.read(tmp_path / "t-rank1.json").spans
    told = {each.step: each.name for each in spans if each.name.startswith("updates")}
    assert told[11].startswith("updates together, to measure it; a step: at once ")
    assert told[chosen].startswith(f"updates {ways[chosen][0]}; a step: at once ")


@pytest.mark.parametrize("compressor", ["int8", "onebit", "qsgd"])
def test_no_bit_depends_on_whether_units_go_together(two: Group, compressor: str) -> None:
    measured, given = (
        two.run(train_wide, config=config(compressor, unit_bytes), steps=25)
        for unit_bytes in (None, 4 << 20)
    )
    assert {way for way, _ in measured[0]["ways"]} == {"at once", "together"}
    assert {way for way, _ in given[0]["ways"]} == {"at once"}
    assert same([each["bits"][0] for each in measured + given])
    assert [each["bits"] for each in measured] == [each["bits"] for each in given]


@pytest.mark.parametrize(
    "of",
    [config("none"), config("int8", 1 << 20), config("int8", policy="priority")],
    ids=["nothing is compressed", "sizes are given", "what is urgent overtakes"],
)
def test_nothing_is_tried_where_there_is_no_choice(two: Group, of: dict[str, Any]) -> None:
    for found in two.run(train_wide, config=of, steps=20):
        assert found["ways"] == [["at once", False]] * 20
        assert found["steps_s"] == [[None, None, None]] * 20
