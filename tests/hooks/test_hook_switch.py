"""A compressor is changed in mid-run: all ranks agree, and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _mass import Balance, gradients, residuals
from _rank_models import Linear
from _ranks import Group, same, settings
from _training import digest, registered

import compressa

pytestmark = pytest.mark.ranks

ROUNDING = 2e-6


def switching(
    *,
    config: Any,
    switches: Sequence[Sequence[Any]],
    steps: int,
    folder: str,
) -> dict[str, Any]:
    """Run steps; before some, call for a switch: (before step, new configuration, first step).

    Saves at the end, and loads into a fresh registration of the last configuration.
    """
    rank = dist.get_rank()
    net, balance = Linear(), Balance()
    errors, kept, began = [], [], []
    with registered(net, config) as (wrapped, handle):
        for step in range(steps):
            for before, wanted, first in switches:
                if before == step:
                    began.append(handle.switch(wanted, first))
            vectors = gradients(rank, step)
            net.zero_grad()
            wrapped(*vectors).backward()
            balance.give(vectors)
            balance.get(net)
            errors.append(max(balance.errors(handle)))
            kept.append(float(sum(v.float().abs().sum() for v in residuals(handle).values())))
        handle.save(folder)
        keys = sorted(handle.state_dict())
        used = sorted(handle.stats().compressors)
    with registered(Linear(), {**config, **switches[-1][1]}) as (_, fresh):
        fresh.load(folder)
        step = fresh.next_step
    return {
        "errors": errors,
        "kept": kept,
        "began": began,
        "keys": keys,
        "compressors": used,
        "loaded_step": step,
        "digest": digest(net),
    }


def refused(*, config: Any, calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Call for switches that can not be; return the messages, and go on training after each."""
    rank, net = dist.get_rank(), Linear()
    messages = []
    with registered(net, config) as (wrapped, handle):
        for number, call in enumerate(calls):
            own = {**call, **call.get(f"rank{rank}", {})}
            try:
                handle.switch(own["to"], own.get("at_step"))
                messages.append("")
            except compressa.CompressaError as error:
                messages.append(f"{type(error).__name__}: {error}")
            net.zero_grad()
            wrapped(*gradients(rank, number)).backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        assert grads
        assert all(bool(torch.isfinite(grad).all()) for grad in grads)
        assert sorted(handle.stats().compressors) == ["none", "topk"]
    return messages


def test_mass_survives_switches_between_compressors(two: Group, tmp_path: Path) -> None:
    switches = [
        (2, {"compressor": "int8"}, 5),
        (6, {"compressor": "none"}, None),
        (8, {"compressor": "topk", "feedback": {"kind": "error"}}, 11),
        (13, {"compressor": "none"}, 15),
    ]
    config = settings("topk")
    results = two.run(
        switching,
        config=config,
        switches=switches,
        steps=18,
        folder=str(tmp_path),
    )
    for result in results:
        assert max(result["errors"]) < 3 * ROUNDING
        assert result["began"] == [5, 8, 11, 15]
        assert {"topk", "int8", "none"} <= set(result["compressors"])
        # What topk and int8 kept is gone with the first dense gradient, and comes again.
        assert all(result["kept"][step] > 0 for step in (4, 7, 12, 14))
        assert result["kept"][8] == result["kept"][15] == 0
        assert result["loaded_step"] == 18
    same([r["digest"] for r in results])


@pytest.mark.parametrize(
    ("first", "kind", "second"), [("gtopk", "auto", "int8"), ("onebit", "per_hop", "int8")]
)
def test_mass_survives_switches_to_and_from_sums_by_hops(
    first: str, kind: str, second: str, two: Group, tmp_path: Path
) -> None:
    config = settings(first)
    config["exchange"] = {**config["exchange"], "kind": kind}
    compressors = [second, "none", first]
    results = two.run(
        switching,
        config=config,
        switches=[(2 * i, {"compressor": name}, None) for i, name in enumerate(compressors)],
        steps=8,
        folder=str(tmp_path),
    )
    for result in results:
        assert max(result["errors"]) < 3 * ROUNDING
        assert set(result["compressors"]) == {first, second, "none"}
        assert result["kept"][4] == 0
        assert result["kept"][5] == 0
        assert all(result["kept"][step] > 0 for step in (1, 3, 7))
    same([r["digest"] for r in results])


def test_state_that_nobody_keeps_any_more_is_dropped(two: Group, tmp_path: Path) -> None:
    config = settings("topk", momentum={"factor": 0.5}, feedback={"dtype": "bfloat16"})
    results = two.run(
        switching,
        config=config,
        switches=[(1, {"compressor": "topk", "momentum": {}, "feedback": {}}, 3)],
        steps=5,
        folder=str(tmp_path),
    )
    for result in results:
        assert not any("momentum/" in key for key in result["keys"])
        assert any("residual/" in key for key in result["keys"])
        assert result["loaded_step"] == 5


def test_a_warm_up_that_ended_before_the_switch_can_be_resumed(two: Group, tmp_path: Path) -> None:
    warmup = {"steps": 2, "compressor": "powersgd"}
    results = two.run(
        switching,
        config=settings("topk"),
        switches=[(3, {"compressor": "int8", "warmup": warmup}, 5)],
        steps=8,
        folder=str(tmp_path),
    )
    assert [result["loaded_step"] for result in results] == [8, 8]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"to": {"compressor": "int8"}, "at_step": 1}, "StateError: .*step 1 is too near"),
        ({"to": {"compressor": "nil"}}, '"nil" is not a compressor'),
        ({"to": {"engine": {"seed": 7}}}, "engine: can not change in mid-run"),
        (
            {"to": {"compressor": "int8"}, "rank1": {"to": {"compressor": "int4"}}},
            "ConfigError: the ranks differ in config.compressor.*'int8'",
        ),
        (
            {"to": {"compressor": "int8"}, "at_step": 8, "rank1": {"at_step": 9}},
            "ConfigError: the ranks differ in step: rank 0 has 8, rank 1 has 9",
        ),
        (
            {"to": {"compressor": "int8"}, "rank1": {"to": {"compressor": "nil"}}},
            '"nil" is not a compressor',
        ),
    ],
    ids=["near", "unknown", "engine", "other-compressor", "other-step", "one-rank"],
)
def test_a_switch_that_ranks_do_not_agree_on_changes_nothing(
    call: dict[str, Any], text: str, two: Group
) -> None:
    plain = {"to": {"engine": {"seed": 7}}}
    calls = [call, plain, plain]
    results = two.run(refused, config=settings("topk"), calls=calls)
    for messages in results:
        assert re.search(text, messages[0], re.DOTALL), messages[0]
        assert all(messages)
