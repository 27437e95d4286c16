"""Replicas that differ by one bit are found out, on real ranks, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _ranks import Group, Pools, same, settings

pytestmark = pytest.mark.ranks

TRAIN = "_rank_jobs_integrity.train"
WAYS = ["hook", "overlapped"]
PARAMETER = {"rank": 1, "step": 3, "what": "parameter", "name": "2.weight"}
"""Found by the comparison in step 4 if every second step has one, told when step 5 begins."""


def config_of(on_mismatch: str, compressor: str = "topk", **sections: Any) -> dict[str, Any]:
    integrity = {"every": 2, "on_mismatch": on_mismatch}
    return settings(compressor, integrity=integrity, **sections)


def run(group: Group, **arguments: Any) -> list[dict[str, Any]]:
    results = group.run(TRAIN, **arguments)
    assert all(not result["threads"] for result in results)
    return results


def blamed(size: int, rank: int = 1) -> str:
    return f"rank {rank} holds other values" if size > 2 else "ranks 0 and 1 hold different values"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_bit_flipped_in_a_weight_ends_the_training_and_is_named(
    way: str, size: int, pools: Pools
) -> None:
    results = run(pools.get(size), config=config_of("raise"), way=way, fault=PARAMETER)
    why = same([result["why"] for result in results])
    assert f"step 4: {blamed(size)} of parameter '2.weight'" in why
    assert "integrity.every = 0" in why
    assert same([result["trained"] for result in results]) == 5


@pytest.mark.parametrize("way", WAYS)
def test_replicas_that_differ_are_not_saved(way: str, two: Group, tmp_path: Path) -> None:
    arguments = {"way": way, "fault": PARAMETER, "save": str(tmp_path / "ckpt")}
    results = run(two, config=config_of("raise"), steps=5, **arguments)
    assert f"step 4: {blamed(2)}" in same([result["why"] for result in results])
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [2, 3])
def test_it_is_only_told_if_that_is_wanted(way: str, size: int, pools: Pools) -> None:
    results = run(pools.get(size), config=config_of("warn"), way=way, fault=PARAMETER)
    (said,) = same([result["said"] for result in results])
    assert f"step 4: {blamed(size)} of parameter '2.weight'" in said
    assert same([result["trained"] for result in results]) == 6
    assert len({result["parameters"] for result in results}) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("size", "odd"), [(3, 0), (3, 1), (4, 3)])
def test_a_majority_repairs_it_and_training_goes_on(
    way: str, size: int, odd: int, pools: Pools
) -> None:
    fault = {**PARAMETER, "rank": odd}
    results = run(pools.get(size), config=config_of("repair"), way=way, fault=fault, steps=8)
    (said,) = same([result["said"] for result in results])
    assert f"step 4: {blamed(size, odd)} of parameter '2.weight'" in said
    assert "brought to the others" in said
    assert same([result["trained"] for result in results]) == 8
    same([result["parameters"] for result in results])


@pytest.mark.parametrize("way", WAYS)
def test_without_a_majority_nothing_is_repaired(way: str, two: Group) -> None:
    results = run(two, config=config_of("repair"), way=way, fault=PARAMETER)
    why = same([result["why"] for result in results])
    assert "ranks 0 and 1 hold different values of parameter '2.weight'" in why
    assert same([result["trained"] for result in results]) == 5


@pytest.mark.parametrize(("way", "what"), [("hook", "buffer"), ("overlapped", "broadcast")])
@pytest.mark.parametrize("odd", [0, 2])
def test_a_bit_flipped_in_a_buffer_is_named_and_repaired(
    way: str, what: str, odd: int, pools: Pools
) -> None:
    fault = {"rank": odd, "step": 4, "what": what, "name": "2.running_mean"}
    arguments = {"way": way, "fault": fault, "model": "normed_cnn"}
    three = pools.get(3)
    told = f"step 4: {blamed(3, odd)} of buffer '2.running_mean'"
    results = run(three, config=config_of("raise"), **arguments)
    assert told in same([result["why"] for result in results])
    results = run(three, config=config_of("repair"), steps=8, **arguments)
    (said,) = same([result["said"] for result in results])
    assert told in said
    same([result["parameters"] for result in results])


@pytest.mark.parametrize("way", WAYS)
def test_a_bit_flipped_in_what_a_compressor_shares_is_named_and_repaired(
    way: str, pools: Pools
) -> None:
    three = pools.get(3)
    fault = {"rank": 2, "step": 4, "what": "state", "name": "powersgd_q/2.weight"}
    arguments = {"way": way, "fault": fault}
    told = f"step 4: {blamed(3, 2)} of compressor state 'powersgd_q/2.weight'"
    results = run(three, config=config_of("raise", "powersgd"), **arguments)
    assert told in same([result["why"] for result in results])
    results = run(three, config=config_of("repair", "powersgd"), steps=8, **arguments)
    assert told in same([result["said"] for result in results])[0]
    same([result["parameters"] for result in results])
    assert same([result["state"] for result in results])


@pytest.mark.parametrize("way", WAYS)
def test_the_mean_that_ef21_keeps_is_compared(way: str, pools: Pools) -> None:
    fault = {"rank": 0, "step": 3, "what": "state", "name": "ef21_mean/2.weight"}
    config = config_of("repair", feedback={"kind": "ef21"})
    results = run(pools.get(3), config=config, way=way, fault=fault, steps=8)
    said = same([result["said"] for result in results])
    assert "compressor state 'ef21_mean/2.weight'" in " ".join(said)


@pytest.mark.parametrize("broadcast", [True, False])
def test_running_statistics_of_each_rank_are_no_fault(broadcast: bool, two: Group) -> None:
    """They differ between ranks from one broadcast to the next, and without one for ever."""
    buffers = {"broadcast_buffers": broadcast}
    how: dict[str, Any] = {"config": settings("int8"), "model": "normed_cnn", "accumulate": 3}
    same([r["parameters"] for r in two.run("_rank_jobs.train", ddp=buffers, **how)])
    job = "_rank_jobs_overlap.train_in_all_ways"
    same([r["on"] for r in two.run(job, options=buffers, ddp=False, **how)])


def test_parameters_that_differ_on_purpose_in_backward_are_no_fault(two: Group) -> None:
    config = settings("topk")
    _, *said = same(two.run("_rank_jobs_integrity.perturb", config=config, accumulate=False))
    assert len(said) == 3
    assert "replicas were not compared in step 1" in said[1]
    assert "integrity.every = 0" in said[1]
    _, *said = same(two.run("_rank_jobs_integrity.perturb", config=config, accumulate=True))
    assert not said


@pytest.mark.parametrize("how", ["module", "in place", "ddp"])
def test_a_compiled_model_is_compared_and_not_compiled_anew(how: str, two: Group) -> None:
    runs = [
        same(
            two.run(
                "_rank_jobs_integrity.compile_and_train",
                config=settings("int8", integrity={"every": every}),
                how=how,
            )
        )
        for every in (0, 2)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_compared_if_that_is_not_wanted(way: str, two: Group) -> None:
    config = settings("topk", integrity={"every": 0})
    results = run(two, config=config, way=way, fault=PARAMETER)
    assert same([result["trained"] for result in results]) == 6
    assert len({result["parameters"] for result in results}) == 2
