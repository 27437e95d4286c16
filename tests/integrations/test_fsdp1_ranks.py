"""The pair of `comm_hook` in FSDP1's slot, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _flat import (
    alike,
    ambiguous,
    in_a_world_of_one,
    kept,
    lost,
    misplaced,
    owed,
    padded,
    refused,
    resumed,
    train,
    unfrozen,
    unheard,
)
from _ranks import Group, Pools, same

pytestmark = pytest.mark.ranks

QUICK = {"deadline_s": 20.0, "heartbeat_s": 0.5, "silence_s": 10.0}
INT8 = {"compressor": "int8", "dense_below": {"elems": 40}, "exchange": QUICK}


@pytest.mark.parametrize(
    "how",
    [
        {"orig": False},
        {"orig": True},
        {"strategy": "SHARD_GRAD_OP", "parts": 3, "clip": 0.5},
        {"orig": True, "parts": 3, "clip": 0.5, "synced": True},
        {"orig": True, "frozen": True},
        {"checkpointed": "NO_REENTRANT"},
        {"checkpointed": "REENTRANT", "orig": True},
        {"param_dtype": "bfloat16", "clip": 0.5},
        {"param_dtype": "bfloat16", "reduce_dtype": "float32", "orig": True},
    ],
    ids=str,
)
def test_without_compression_two_ranks_have_the_bits_of_fsdp1(
    how: dict[str, Any], two: Group
) -> None:
    plain, own = (two.run(train, config=config, **how) for config in (None, {}))
    for before, after in zip(plain, own, strict=True):
        assert after["digest"] == before["digest"]
        assert after["losses"] == before["losses"]


def test_without_compression_four_ranks_differ_by_rounding_only(four: Group) -> None:
    plain, own = (
        same([r["values"] for r in four.run(train, config=config, parts=2, clip=1.0, orig=True)])
        for config in (None, {})
    )
    for name in plain:
        np.testing.assert_allclose(own[name], plain[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("config", "policy"),
    [
        (INT8, {}),
        ({**INT8, "compressor": {"name": "topk", "density": 0.3}}, {}),
        (INT8, {"param_dtype": "bfloat16"}),
    ],
    ids=["int8", "topk", "bfloat16"],
)
def test_it_trains_as_without_and_all_ranks_hold_the_same(
    config: dict[str, Any], policy: dict[str, str], four: Group
) -> None:
    how = {"steps": 12, "lr": 0.01, "orig": True, **policy}
    plain = four.run(train, config=None, **how)[0]
    found = four.run(train, config=config, **how)
    own = found[0]
    assert {each["digest"] for each in found} == {own["digest"]}
    assert own["losses"][-1] < 0.9 * own["losses"][0]
    np.testing.assert_allclose(own["losses"][-1], plain["losses"][-1], rtol=0.03)
    assert own["ratio"] > 1.4
    assert own["steps"] == 12
    assert own["digest"] != plain["digest"]


def test_frozen_parameters_are_not_brought(two: Group) -> None:
    every, some = (two.run(train, config=INT8, orig=True, frozen=f)[0] for f in (False, True))
    assert some["dense"] < 0.6 * every["dense"]


@pytest.mark.parametrize(
    "compressor", ["int8", "int4", "onebit", {"name": "topk", "density": 0.05}, "none"], ids=str
)
def test_what_owners_did_not_get_is_in_the_residuals(compressor: Any, four: Group) -> None:
    config = {"compressor": compressor, "dense_below": {"elems": 0}}
    for found in four.run(owed, config=config, steps=6):
        assert found["missing"] < 3e-6
        assert (found["left"] > 1e-3) == (compressor != "none")


def test_what_is_no_parameter_s_is_zero(two: Group) -> None:
    assert same(two.run(padded, config=INT8))


def test_parameters_have_the_names_and_roles_that_they_have_otherwise(two: Group) -> None:
    otherwise, flat, views = same(two.run(alike))
    assert flat == otherwise
    assert views == otherwise


@pytest.mark.parametrize("orig", [False, True])
def test_a_resumed_run_repeats_its_bits(orig: bool, two: Group, tmp_path: Path) -> None:
    config = {**INT8, "compressor": "int4"}
    straight, again = same(
        two.run(resumed, config=config, folder=str(tmp_path), steps=6, orig=orig)
    )
    assert straight == again


def test_residuals_are_delivered_when_the_number_of_ranks_changes(
    pools: Pools, tmp_path: Path
) -> None:
    config, folder = {"compressor": "onebit", "dense_below": {"elems": 0}}, str(tmp_path)
    before = pools.get(4).run(kept, config=config, folder=folder, first=True)
    for ranks in (2, 1):
        after = pools.get(ranks).run(kept, config=config, folder=folder, first=False)
        pairs = zip(before[0]["owed"], after[0]["owed"], strict=True)
        for left, right in pairs:
            assert np.abs(left).max() > 0.1
            np.testing.assert_allclose(right, left, atol=3e-6)
        assert {found["own"] for found in after} == {0.0}


def test_a_world_of_one_has_nothing_to_bring(pools: Pools) -> None:
    ((plain, own),) = pools.get(1).run(in_a_world_of_one, config=INT8)
    assert own == plain


@pytest.mark.parametrize(
    ("config", "how", "error", "fix"),
    [
        ({"fsdp": {"weights": "int8"}}, {}, "ConfigError", "apply_to_fsdp"),
        ({"fsdp": {"gradients": "both"}}, {}, "ConfigError", "mesh of two dimensions"),
        ({"compressor": "int9"}, {}, "ConfigError", "int8"),
        ({"compressor": "powersgd"}, {}, "ConfigError", "owner of a shard"),
        ({"engine": {"recover": True}}, {}, "ConfigError", "comm_hook can not go on"),
        ({}, {"strategy": "NO_SHARD"}, "StateError", "DistributedDataParallel"),
        ({}, {"param_dtype": "float16"}, "StateError", "bfloat16"),
        ({}, {"scaler": object()}, "StateError", "leave scaler out"),
        ([{}, {"compressor": "int9"}], {}, "ConfigError", "int9"),
    ],
    ids=["weights", "both", "unknown", "powersgd", "recover", "dense", "half", "scaled", "one"],
)
def test_what_is_put_wrong_is_refused_with_the_fix_and_again(
    config: Any, how: dict[str, Any], error: str, fix: str, two: Group
) -> None:
    for first, again in two.run(refused, config=config, **how):
        assert first.startswith(error)
        assert fix in first
        assert again == first


def test_a_state_is_for_one_model_and_register_comm_hook_for_ddp(two: Group) -> None:
    for late, soon, registered in two.run(misplaced, config=INT8):
        assert "two models" in late
        assert "two models" in soon
        assert "*compressa.comm_hook(config)" in registered


def test_a_gradient_that_may_be_of_two_units_is_refused(two: Group) -> None:
    for text in two.run(ambiguous, config=INT8):
        assert "all parameters get a gradient" in text


def test_what_is_unfrozen_later_is_refused(two: Group) -> None:
    for text in two.run(unfrozen, config=INT8):
        assert "frozen or unfrozen" in text
        assert "'table.weight'" in text


def test_a_hook_that_hears_of_nothing_is_found_out_once(two: Group) -> None:
    for said in two.run(unheard, config=INT8):
        (text,) = said
        assert "no_sync()" in text


def test_a_lost_rank_is_named_on_all_others(fresh: Any) -> None:
    found = fresh(3).outcomes(lost, config=INT8, rank=1, deadline_s=40.0)
    for outcome in (found[0], found[2]):
        assert outcome.error is not None, outcome.explain()
        assert outcome.error["type"] == "PeerLost", outcome.explain()
        assert outcome.error["rank"] == 1
        assert outcome.seconds < 20.0
