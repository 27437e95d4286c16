"""Overlap on real ranks: the bits are DDP's, and failures surface where somebody waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _ranks import Group, Pools, same, settings

from compressa.tracing import reader

pytestmark = pytest.mark.ranks

ALL = "_rank_jobs_overlap.train_in_all_ways"


def check(ends: list[dict[str, Any]], *, ddp: bool = True) -> dict[str, Any]:
    """All ways gave the same bits on all ranks; return rank 0's."""
    for way in ("on", "off"):
        same([end[way] for end in ends])
    for end in ends:
        assert end["on"] == end["off"]
        assert end["on state"] == end["off state"]
        assert not ddp or end["on"] == end["ddp"]
        assert end["finite"]
    return ends[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw foreach", "adafactor", "muonish"])
def test_without_compression_the_bits_are_those_of_ddp(optimizer: str, two: Group) -> None:
    check(two.run(ALL, config=settings("none"), optimizer=optimizer))


@pytest.mark.parametrize("model", ["transformer", "normed_cnn", "scaled", "frozen_mlp"])
def test_models_of_every_kind_train_as_with_ddp(model: str, two: Group) -> None:
    check(two.run(ALL, config=settings("none"), model=model, optimizer="adam"))


@pytest.mark.parametrize("model", ["complex64", "complex128"])
def test_complex_models_train_as_with_ddp(model: str, two: Group) -> None:
    check(two.run(ALL, config=settings("none"), model=model))
    check(two.run(ALL, config=settings("int8"), model=model, ddp=False), ddp=False)


def test_updates_that_wait_for_a_slow_network_give_the_same_bits(two: Group) -> None:
    slow = {"policy": "priority", "pace_bits_per_s": 5e6}
    config = settings("none", schedule=slow)
    assert check(two.run(ALL, config=config, steps=3))["late"] > 0


@pytest.mark.parametrize("compressor", ["topk", "int8", "powersgd"])
def test_overlap_changes_no_bit_of_what_is_compressed(compressor: str, four: Group) -> None:
    config = settings(compressor, schedule={"policy": "priority"})
    check(four.run(ALL, config=config, ddp=False), ddp=False)


def test_accumulation_and_loss_scaling_give_the_bits_of_ddp(two: Group) -> None:
    check(two.run(ALL, config=settings("none"), accumulate=2))
    end = check(two.run(ALL, config=settings("none"), scaled=True, max_norm=0.1))
    assert sum(end["ended"].values()) >= 3


def test_an_overflow_on_one_rank_skips_the_step_on_all(two: Group) -> None:
    for compressor in ("none", "topk"):
        plain = compressor == "none"
        how = {"ddp": plain, "scaled": True, "steps": 5, "spoil": {1: 1, 3: 0}}
        check(two.run(ALL, config=settings(compressor), **how), ddp=plain)


def test_unused_parameters_are_left_as_ddp_leaves_them(two: Group) -> None:
    for compressor in ("none", "topk"):
        plain = compressor == "none"
        options = {"find_unused_parameters": True}
        how = {"ddp": plain, "model": "branches", "options": options}
        check(two.run(ALL, config=settings(compressor), **how), ddp=plain)


def test_each_gradient_is_cut_alike_with_and_without_overlap(two: Group) -> None:
    options = {"clip_each": 0.01}
    check(two.run(ALL, config=settings("int8"), options=options, ddp=False), ddp=False)


def test_a_world_of_one_trains(pools: Pools) -> None:
    for compressor in ("none", "int8"):
        ddp = compressor == "none"
        check(pools.get(1).run(ALL, config=settings(compressor), ddp=ddp), ddp=ddp)


def test_means_on_four_ranks_are_right_to_two_units_in_the_last_place(four: Group) -> None:
    assert all(four.run("_rank_jobs_overlap.mean_of_gradients", config=settings("none")))


def test_a_checkpoint_while_updates_are_due_goes_on_with_the_same_bits(
    two: Group, tmp_path: Path
) -> None:
    config = settings("topk", schedule={"pace_bits_per_s": 5e6})
    how = {"config": config, "folder": str(tmp_path), "optimizer": "adam", "steps": 4}
    for one, its_state, other, other_state in two.run("_rank_jobs_overlap.resume", **how):
        assert one == other
        assert its_state == other_state


def test_all_ranks_start_from_the_values_of_the_first(two: Group) -> None:
    same(two.run("_rank_jobs_overlap.start_unlike"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_each": 1.0}, "clip_each: rank 0 has None, rank 1 has 1.0"),
        ({"overlap": False}, "overlap: rank 0 has True, rank 1 has False"),
        ({"find_unused_parameters": True}, "rank 1"),
        ({"lbfgs": True}, "LBFGS moves all parameters at once"),
    ],
)
def test_ranks_that_differ_are_told(options: dict[str, Any], message: str, two: Group) -> None:
    for outcome in two.errors("_rank_jobs_overlap.differ", rank=1, **options):
        assert outcome.error is not None
        assert message in outcome.error["message"]


def test_a_lost_rank_surfaces_wherever_somebody_waits(fresh: Callable[[int], Group]) -> None:
    outcomes = fresh(3).outcomes("_rank_jobs_overlap.lose_a_rank", config=settings("topk"), lost=2)
    assert outcomes[2].exit_code == 3
    for outcome in outcomes[:2]:
        assert outcome.ok, outcome.explain()
        reads = ("forward", "flush", "state_dict", "parameter", "save")
        assert outcome.value == dict.fromkeys(reads, "PeerLost") | {"guarded": 0}


def test_a_switch_goes_with_overlap_and_traces_name_what_is_applied(
    two: Group, tmp_path: Path
) -> None:
    how = {"config": settings("none"), "other": settings("int8"), "path": str(tmp_path / "t.json")}
    same([end[0] for end in two.run("_rank_jobs_overlap.switch_and_trace", **how)])
    for rank in range(2):
        trace = reader.read(tmp_path / f"t-rank{rank}.json")
        applied = {span.name.split(" ")[0] for span in trace.spans if span.stage == "apply"}
        assert applied
        assert applied <= {f"{layer}.{kind}" for layer in range(8) for kind in ("weight", "bias")}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("transport", ["tcp", "gloo"])
@pytest.mark.parametrize("compressor", ["none", "topk"])
def test_memory_of_a_step_is_free_without_the_garbage_collector(
    compressor: str, transport: str, overlap: bool, two: Group, tmp_path: Path
) -> None:
    config = settings(compressor, exchange={"transport": transport, "algorithm": "ring"})
    trace = str(tmp_path / "trace.json")
    job = "_rank_jobs_overlap.left_to_the_collector"
    assert two.run(job, config=config, overlap=overlap, trace=trace) == [{}, {}]
