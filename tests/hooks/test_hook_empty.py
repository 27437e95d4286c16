"""Parameters without elements train, alone in a bucket of DDP or among others."""

from __future__ import annotations

from typing import Any

import pytest
from _conforming import section
from _overlapping import train_in_all_ways
from _rank_models import EmptyBesideEach
from _ranks import Group, same, settings
from _training import train, train_plain
from compressor_cases import ALL

pytestmark = pytest.mark.ranks

ALONE = {"bucket_cap_mb": 1e-6}
"""Each parameter has a bucket of its own, and the first is alone in the last."""


def all_compressors() -> dict[str, Any]:
    """A configuration with a rule for each compressor: of a weight, and an empty one beside it."""
    assert len(ALL) <= EmptyBesideEach.COUNT
    rules = [
        {"match": {"name": [f"weights.{i}", f"empty.{i}"]}, "compressor": section(compressor)}
        for i, compressor in enumerate(ALL.values())
    ]
    return settings("none", rules=rules, dense_below={"elems": 0})


@pytest.mark.parametrize("ddp", [{}, {**ALONE, "gradient_as_bucket_view": True}])
def test_without_compression_the_bits_are_those_of_ddp(ddp: dict[str, Any], two: Group) -> None:
    arguments = {"model": "with_empty", "ddp": ddp}
    plain = two.run(train_plain, **arguments)
    hooked = two.run(train, config=settings("none"), **arguments)
    assert same([r["parameters"] for r in [*plain, *hooked]])


def test_every_compressor_has_them_beside_its_own(two: Group) -> None:
    arguments = {"config": all_compressors(), "model": "empty_beside_each", "steps": 2}
    runs = two.run(train, ddp=ALONE, **arguments)
    same([r["parameters"] for r in runs])
    assert all(r["finite"] for r in runs)
    assert len(runs[0]["stats"]["compressors"]) > 20


def test_overlap_without_compression_gives_the_bits_of_ddp(two: Group) -> None:
    options = {"find_unused_parameters": True}
    ends = two.run(train_in_all_ways, config=settings("none"), model="with_empty", options=options)
    assert same([end[way] for end in ends for way in ("ddp", "off", "on")])


def test_every_compressor_has_them_beside_its_own_with_overlap(two: Group) -> None:
    arguments = {"config": all_compressors(), "model": "empty_beside_each", "steps": 2}
    ends = two.run(train_in_all_ways, ddp=False, **arguments)
    assert same([end[way] for end in ends for way in ("off", "on")])
    assert all(end["finite"] for end in ends)


def test_a_model_of_nothing_else_trains(two: Group) -> None:
    runs = two.run(train, config=settings("topk"), model="only_empty", steps=3)
    assert same([r["losses"] for r in runs]) == [0.0, 0.0, 0.0]
