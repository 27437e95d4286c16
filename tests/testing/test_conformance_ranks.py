"""Real processes: every compressor gives every rank the same bits, those of the loopback."""

from __future__ import annotations

from typing import Any

import pytest
from _conforming import SHAPE, digest, gradients, means, section
from _ranks import Pools, same
from compressor_cases import ALL

from compressa.config import assign, load_config
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld

pytestmark = pytest.mark.ranks

STEPS = 3
UNIT_BYTES = 4096  # parameters that may be cut, are
NAMES = [f"weights.{i}" for i in range(len(ALL))]


def settings(**exchange: Any) -> dict[str, Any]:
    """One rule for each compressor under test: each has a parameter of its own."""
    pairs = zip(NAMES, map(section, ALL.values()), strict=True)
    rules = [{"match": {"name": name}, "compressor": compressor} for name, compressor in pairs]
    sizes = {"unit_bytes": UNIT_BYTES, "unit_payload_bytes": 1, "unit_dense_bytes": UNIT_BYTES}
    return {"rules": rules, "dense_below": {"elems": 0}, "exchange": {**sizes, **exchange}}


def on_loopback(size: int) -> list[list[str]]:
    parameters = [ParameterInfo(i, name, SHAPE) for i, name in enumerate(NAMES)]
    compressors = assign(load_config(settings()), parameters)
    world = LoopbackWorld(size, parameters, compressors, unit_bytes=UNIT_BYTES)
    result = []
    for step in range(STEPS):
        own = [gradients(len(NAMES), rank, step) for rank in range(size)]
        outs = world.step([dict(zip(NAMES, parts, strict=True)) for parts in own])
        digests = [[digest(mean[name]) for name in NAMES] for mean in outs]
        result.append(same(digests))
    return result


def on_processes(size: int, pools: Pools, **more: Any) -> list[list[list[str]]]:
    arguments = {"config": settings(), "count": len(NAMES), "steps": STEPS, **more}
    return pools.get(size).run(means, **arguments)


def compare(runs: list[list[list[str]]], due: list[list[str]]) -> None:
    for step in range(STEPS):
        for index, name in enumerate(ALL):
            bits = {run[step][index] for run in runs}
            assert len(bits) == 1, f"{name}, step {step}: the ranks have different bits"
            assert bits == {due[step][index]}, f"{name}, step {step}: the loopback has other bits"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_agree_with_each_other_and_with_the_loopback(size: int, pools: Pools) -> None:
    compare(on_processes(size, pools), on_loopback(size))


def test_no_bit_changes_where_payloads_are_shortened(pools: Pools) -> None:
    compare(on_processes(3, pools, config=settings(entropy_level=1)), on_loopback(3))


def test_the_comparison_finds_one_element_that_is_dropped(pools: Pools) -> None:
    runs = on_processes(2, pools, mutation="drop one element")
    with pytest.raises(AssertionError, match="the loopback has other bits"):
        compare(runs, on_loopback(2))
    runs[1][0][0] = "another"
    with pytest.raises(AssertionError, match="the ranks have different bits"):
        compare(runs, on_loopback(2))
