"""apply_to_fsdp on real ranks: FSDP2 and HSDP, with gradients and weights compressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _ranks import Group, Pools, same
from _sharded import (
    compiled,
    delivered,
    in_launch_order,
    kept,
    lost,
    owed,
    partly_frozen,
    partly_reduced,
    refused,
    refused_on_one,
    resumed,
    train,
    unused,
    used_twice,
)
from torch.distributed.fsdp import FSDPModule

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(
        not hasattr(FSDPModule, "set_reduce_scatter_unused_params"),
        reason="FSDP2 of torch before 2.13 is refused",
    ),
]

QUICK = {"deadline_s": 20.0, "heartbeat_s": 0.5, "silence_s": 10.0}
INT8 = {"compressor": "int8", "dense_below": {"elems": 40}, "exchange": QUICK}
ALL_INT8 = {**INT8, "fsdp": {"weights": "int8"}}
BOTH = {**INT8, "fsdp": {"gradients": "both", "weights": "int8"}}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"reshard": False, "parts": 3, "clip": 0.5},
        {"one_group": True},
        {"param_dtype": "bfloat16"},
        {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
    ],
    ids=["plain", "accumulated", "one_group", "bfloat16", "mixed"],
)
def test_without_compression_two_ranks_have_the_bits_of_fsdp2(
    how: dict[str, Any], two: Group
) -> None:
    plain, own = (two.run(train, config=config, **how) for config in (None, {}))
    for before, after in zip(plain, own, strict=True):
        assert after["digest"] == before["digest"]
        assert after["losses"] == before["losses"]


@pytest.mark.parametrize("hybrid", [False, True], ids=["shards", "replicas"])
def test_without_compression_four_ranks_differ_by_rounding_only(hybrid: bool, four: Group) -> None:
    plain, own = (
        same(
            [r["values"] for r in four.run(train, config=config, hybrid=hybrid, parts=2, clip=1.0)]
        )
        for config in (None, {})
    )
    for name in plain:
        np.testing.assert_allclose(own[name], plain[name], rtol=2e-5, atol=2e-6)


def test_passes_within_a_replica_are_averaged_when_the_next_one_is(four: Group) -> None:
    plain, own = (same(four.run(partly_reduced, config=config)) for config in (None, {}))
    assert own == plain


def test_exchanges_may_have_to_be_launched_in_one_order(two: Group) -> None:
    plain = two.run(train, config=ALL_INT8)
    for before, after in zip(plain, two.run(in_launch_order, config=ALL_INT8), strict=True):
        assert after["digest"] == before["digest"]


def test_a_block_that_is_used_twice_is_brought_as_often(two: Group) -> None:
    plain, own = (two.run(used_twice, config=config) for config in (None, {}))
    assert own == plain
    for (before, _), (after, _) in zip(plain, two.run(used_twice, config=ALL_INT8), strict=True):
        np.testing.assert_allclose(after, before, rtol=0.01)


def test_frozen_parameters_are_only_gathered(two: Group) -> None:
    plain, own = (two.run(partly_frozen, config=config) for config in (None, {}))
    assert own == plain
    for before, after in zip(plain, two.run(partly_frozen, config=ALL_INT8), strict=True):
        np.testing.assert_allclose(after, before, rtol=0.01)


@pytest.mark.parametrize("whole_net", [False, True], ids=["blocks", "whole"])
def test_a_compiled_net_trains_as_it_does_otherwise(whole_net: bool, two: Group) -> None:
    for plain, own in two.run(compiled, config=ALL_INT8, whole_net=whole_net, deadline_s=120.0):
        np.testing.assert_allclose(own, plain, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "hybrid", "counted"),
    [
        (INT8, False, (True, False, False)),
        (ALL_INT8, False, (True, True, False)),
        (INT8, True, (False, False, True)),
        (BOTH, True, (True, True, True)),
        ({**INT8, "compressor": {"name": "powersgd", "approx_rank": 4}}, True, (0, 0, 1)),
        ({**INT8, "compressor": {"name": "topk", "density": 0.3}}, False, (1, 0, 0)),
    ],
    ids=["int8", "weights", "replicas", "both", "powersgd-replicas", "topk"],
)
def test_it_trains_as_without_and_all_ranks_hold_the_same(
    config: dict[str, Any], hybrid: bool, counted: tuple[bool, ...], four: Group
) -> None:
    how = {"steps": 12, "hybrid": hybrid, "lr": 0.01}
    plain = four.run(train, config=None, **how)[0]
    found = four.run(train, config=config, **how)
    assert len({(each["digest"], each["output"]) for each in found}) == 1
    own = found[0]
    assert own["losses"][-1] < 0.9 * own["losses"][0]
    assert abs(own["output"] - plain["output"]) < 0.03 * abs(plain["output"])
    assert [bool(sent) for sent in own["sent"]] == [bool(c) for c in counted]
    assert own["ratio"] > 1.4
    assert own["digest"] != plain["digest"]


@pytest.mark.parametrize(("reduced", "least"), [("bfloat16", 1.5), ("float32", 2.0)])
def test_int8_trains_in_mixed_precision(reduced: str, least: float, two: Group) -> None:
    policy = {"param_dtype": "bfloat16", "reduce_dtype": reduced}
    found = two.run(train, config=ALL_INT8, steps=12, lr=0.01, **policy)
    assert len({each["digest"] for each in found}) == 1
    assert found[0]["losses"][-1] < 0.9 * found[0]["losses"][0]
    assert least < found[0]["ratio"] < 2 * least  # weights are of two bytes


@pytest.mark.parametrize(
    "compressor", ["int8", "int4", "onebit", {"name": "topk", "density": 0.05}, "none"], ids=str
)
def test_what_owners_did_not_get_is_in_the_residuals(compressor: Any, four: Group) -> None:
    config = {"compressor": compressor, "dense_below": {"elems": 0}}
    for found in four.run(owed, config=config, steps=6):
        assert found["missing"] < 3e-6
        assert (found["left"] > 1e-3) == (compressor != "none")


@pytest.mark.parametrize("gradients", ["shards", "replicas", "both"])
def test_in_hsdp_what_did_not_arrive_is_in_the_residuals(gradients: str, four: Group) -> None:
    config = {"compressor": "int4", "dense_below": {"elems": 0}, "fsdp": {"gradients": gradients}}
    for found in four.run(owed, config=config, steps=6, hybrid=True):
        assert found["missing"] < 3e-6
        assert found["left"] > 1e-3


def test_one_bit_without_feedback_loses_what_the_residuals_would_keep(two: Group) -> None:
    config = {"compressor": "onebit", "dense_below": {"elems": 0}, "feedback": {"kind": "none"}}
    assert two.run(owed, config=config, steps=6)[0]["missing"] > 0.1


@pytest.mark.parametrize("way", ["dcp", "own"])
@pytest.mark.parametrize("hybrid", [False, True], ids=["shards", "replicas"])
def test_a_resumed_run_repeats_its_bits(
    hybrid: bool, way: str, four: Group, tmp_path: Path
) -> None:
    config = {**(BOTH if hybrid else ALL_INT8), "compressor": "int4"}
    found = four.run(resumed, config=config, folder=str(tmp_path), way=way, steps=6, hybrid=hybrid)
    straight, again = same(found)
    assert straight == again


def test_residuals_keep_their_share_of_the_mean_when_the_number_of_ranks_changes(
    pools: Pools, tmp_path: Path
) -> None:
    config = {"compressor": "onebit", "dense_below": {"elems": 0}}
    before = same(pools.get(4).run(kept, config=config, folder=str(tmp_path), first=True))
    after = same(pools.get(2).run(kept, config=config, folder=str(tmp_path), first=False))
    for left, right in zip(before, after, strict=True):
        assert np.abs(left).max() > 0.1
        np.testing.assert_allclose(left, right, atol=1e-6)
    for found in pools.get(2).run(delivered, config=config, folder=str(tmp_path)):
        assert found["missing"] < 3e-6
        assert found["own"] == 0  # what nobody sends to an owner, who is this rank now


@pytest.mark.parametrize(
    ("kind", "config", "error", "said"),
    [
        ("plain", INT8, "StateError", "fully_shard"),
        ("in part", INT8, "StateError", "after the last fully_shard"),
        ("ddp", INT8, "StateError", "register_comm_hook"),
        ("fsdp1", INT8, "StateError", "compressa.comm_hook"),
        ("replicated", INT8, "StateError", "DistributedDataParallel"),
        ("replicated by FSDP", INT8, "StateError", "register_comm_hook"),
        ("twice", INT8, "StateError", "custom collectives already"),
        ("float16", INT8, "StateError", "loss scaling"),
        ("sharded", {"strategy": {"name": "local_sgd"}}, "ConfigError", "does not follow"),
        ("sharded", {"fsdp": {"gradients": "both"}}, "ConfigError", "no replicas"),
        ("sharded", {"fsdp": {"weights": "topk"}}, "ConfigError", "fsdp.weights"),
        ("sharded", {"fsdp": {"weights": "qsgd"}}, "ConfigError", "fsdp.weights"),
        ("sharded", {"compressor": "powersgd"}, "ConfigError", "owner of a shard"),
        ("sharded", {**INT8, "warmup": {"steps": 3}}, "ConfigError", "leave warmup out"),
        ("sharded", {**INT8, "engine": {"recover": True}}, "ConfigError", "checkpoint"),
        ("sharded", {**INT8, "exchange": {"kind": "all_gather"}}, "ConfigError", "exchange.kind"),
        ("sharded", {**INT8, "feedback": {"dtype": "int8"}}, "ConfigError", "feedback.dtype"),
    ],
    ids=lambda x: x if isinstance(x, str) and " " not in x else "",
)
def test_what_is_put_wrong_is_refused_with_the_fix(
    kind: str, config: dict[str, Any], error: str, said: str, two: Group
) -> None:
    for text in two.refused(refused, error, config=config, kind=kind):
        assert said in text


@pytest.mark.parametrize("hybrid", [False, True], ids=["shards", "replicas"])
def test_a_mistake_on_one_rank_is_told_to_all(hybrid: bool, four: Group) -> None:
    found = four.errors(refused_on_one, config=INT8, rank=2, hybrid=hybrid)
    assert {outcome.error["type"] for outcome in found} == {"ConfigError"}
    assert "powersg" in found[2].error["message"]


def test_a_parameter_without_a_gradient_is_named_with_the_call_that_allows_it(two: Group) -> None:
    """A rank that is still in the last collective hears why the other one gave up."""
    found = [outcome.error for outcome in two.errors(unused, config=INT8)]
    for error in found:
        assert error["type"] in ("StateError", "PeerLost")
        assert "set_reduce_scatter_unused_params(True)" in error["message"]
    assert "StateError" in {error["type"] for error in found}


def test_a_lost_rank_is_named_on_all_others(fresh: Any) -> None:
    found = fresh(4).outcomes(lost, config=ALL_INT8, rank=2, deadline_s=40.0)
    for outcome in (found[rank] for rank in (0, 1, 3)):
        assert outcome.error is not None, outcome.explain()
        assert outcome.error["type"] == "PeerLost", outcome.explain()
        assert outcome.error["rank"] == 2
        assert outcome.seconds < 20.0


def test_in_hsdp_those_who_exchange_with_a_lost_rank_name_it_and_all_end(fresh: Any) -> None:
    found = fresh(4).outcomes(lost, config=BOTH, rank=3, hybrid=True, deadline_s=40.0)
    for outcome in found[:3]:
        assert outcome.error is not None, outcome.explain()
        assert outcome.error["type"] == "PeerLost", outcome.explain()
        assert outcome.seconds < 20.0
    assert found[2].error["rank"] == 1
    assert "ranks [2, 3]" in found[2].error["message"]
