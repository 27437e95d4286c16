"""What goes wrong inside the library is detected, on every rank, and never averaged."""

from __future__ import annotations

from typing import Any

import pytest
from _failing import train_with
from _ranks import Group, Pools, same, settings
from _training import train
from _transports import ON_HOST, TAGGED

pytestmark = pytest.mark.ranks


def quick(compressor: str, **exchange: Any) -> dict[str, Any]:
    times = {"deadline_s": 8.0, "heartbeat_s": 0.3, "silence_s": 5.0}
    return settings(compressor, exchange={**times, **exchange})


def refusals(group: Group, config: dict[str, Any], mutation: str) -> list[dict[str, Any]]:
    outcomes = group.errors(train_with, config=config, mutation=mutation, deadline_s=30.0)
    assert max(outcome.seconds for outcome in outcomes) < 15.0
    return [outcome.error for outcome in outcomes]


@pytest.mark.parametrize(
    ("mutation", "compressor", "transport", "size"),
    [
        ("one byte short", "int8", "tcp", 2),
        ("one byte long", "topk", "gloo-group", 2),
        ("only one byte", "topk", "tcp", 2),
        ("wrong magic", "topk", "gloo-group", 2),
        ("wrong body length", "int8", "gloo-group", 2),
        ("wrong step", "int8", "tcp", 4),
    ],
)
def test_a_spoilt_payload_is_refused_on_every_rank(
    mutation: str, compressor: str, transport: str, size: int, pools: Pools
) -> None:
    kind = "scatter_reduce" if compressor == "int8" else "all_gather"
    found = refusals(pools.get(size), quick(compressor, transport=transport, kind=kind), mutation)
    # Whoever looks first finds it: the receiver, or the sender that decodes its own.
    kinds = {error["type"] for error in found}
    assert "PayloadError" in kinds, found
    assert kinds <= {"PayloadError", "PeerLost"}, found
    assert not any("it has left" in error["message"] for error in found), found


@pytest.mark.parametrize("compressor", ["int8", "none"])
def test_units_in_another_order_on_one_rank_are_never_averaged(compressor: str, two: Group) -> None:
    config = quick(compressor, transport="gloo-group")
    for error in refusals(two, config, "swap two units on rank 1"):
        assert error["type"] == "ConfigError", error
        assert "plans differ" in error["message"], error


@pytest.mark.parametrize("compressor", ["int8", "none"])
def test_units_launched_in_another_order_are_never_averaged(compressor: str, two: Group) -> None:
    """What no comparison of plans has seen is found in the messages' headers."""
    config = quick(compressor, transport="gloo-group", kind="auto")
    found = refusals(two, config, "swap two equal units unseen")
    assert {error["type"] for error in found} <= {"PayloadError", "PeerLost"}
    assert all("plans differ" in error["message"] for error in found), found


@pytest.mark.parametrize("transport", TAGGED)
def test_tagged_messages_need_no_order(transport: str, two: Group) -> None:
    """The same fault is none where messages have names."""
    config = settings("topk", exchange={"transport": transport})
    swapped = two.run(train_with, config=config, mutation="swap two units on rank 1")
    plain = two.run(train, config=config, steps=4)
    assert same([r["parameters"] for r in swapped]) == plain[0]["parameters"]


def test_an_unforeseen_error_in_a_worker_thread_reaches_every_rank(two: Group) -> None:
    found = refusals(two, quick("topk"), "a codec that divides by zero on rank 1")
    assert "rank 1 gave up" in found[0]["message"]
    assert all("ZeroDivisionError" in error["message"] for error in found), found


@pytest.mark.parametrize("transport", ON_HOST)
def test_a_unit_that_one_rank_never_sends_times_out(transport: str, two: Group) -> None:
    config = quick("topk", deadline_s=2.0, transport=transport)
    found = refusals(two, config, "rank 1 forgets a unit")
    assert any(error["type"] == "Timeout" for error in found), found
    assert any("deadline_s" in error["message"] for error in found), found
