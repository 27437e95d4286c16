"""gossip on real ranks: the iterates are those of D-PSGD and CHOCO-SGD, on any graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _attached import history, lost, resumed, saved_apart
from _gossip_oracle import Choco, by, trained
from _ranks import Group, Pools, same, settings

from compressa.codecs import Int8, OneBit, TopK
from compressa.collectives.graphs import GRAPHS

pytestmark = pytest.mark.ranks

OWN = [[0.5, 0.5, 0.0, 0.0], [0.5, 0.2, 0.3, 0.0], [0.0, 0.3, 0.3, 0.4], [0.0, 0.0, 0.4, 0.6]]


def check(found: list[Any], due: list[Any], **tolerance: float) -> None:
    for step, ranks in enumerate(due):
        for rank, values in enumerate(ranks):
            for name, value in values.items():
                got = found[rank][step][name]
                np.testing.assert_allclose(got, value, err_msg=f"step {step}", **tolerance)


@pytest.mark.parametrize(
    ("graph", "every"), [("ring", 1), ("torus", 2), ("exponential", 1), ("complete", 3), (OWN, 1)]
)
def test_ranks_take_over_the_mean_of_their_neighbourhood(
    graph: Any, every: int, four: Group
) -> None:
    named = isinstance(graph, str)
    strategy = {"name": "gossip", "every": every, "graph" if named else "weights": graph}
    found = four.run(history, config={"strategy": strategy}, steps=8)
    weights = np.array(GRAPHS[graph](4).weights if named else graph)
    due = trained(weights, 4, 8, every)
    check(found, due, rtol=1e-4, atol=1e-5)
    end = same([each[-1] for each in found])  # after sync
    mean = {n: np.mean([r[n] for r in due[-1]], axis=0) for n in end}
    for name, value in mean.items():
        np.testing.assert_allclose(end[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("compressor", "codec", "step"),
    [
        ({"name": "topk", "density": 0.25}, TopK(density=0.25), 0.3),
        ({"name": "int8"}, Int8(), 1.0),
        ({"name": "onebit"}, OneBit(), 0.4),
    ],
)
def test_compressed_ranks_follow_choco(
    compressor: dict[str, Any], codec: Any, step: float, four: Group
) -> None:
    config = settings(
        compressor,
        strategy={"name": "gossip", "consensus": step},
        dense_below={"elems": 0},
        exchange={"unit_bytes": 1 << 20},
    )
    found = four.run(history, config=config, steps=8)
    weights = np.array(GRAPHS["ring"](4).weights)
    due = trained(weights, 4, 8, 1, Choco(4, by(codec)), step)
    check(found, due, rtol=1e-3, atol=1e-4)
    same([each[-1] for each in found])


@pytest.mark.parametrize("compressor", ["none", "int4", "topk", "qsgd"])
def test_a_resumed_run_repeats_its_bits(compressor: str, two: Group, tmp_path: Path) -> None:
    strategy = {"name": "gossip", "consensus": 0.5}
    config = settings(compressor, strategy=strategy, dense_below={"elems": 10})
    found = two.run(resumed, config=config, folder=str(tmp_path), steps=5, models=True)
    for straight, again in found:
        assert straight == again
    same([values for (values, _), _ in found])


def test_between_two_syncs_there_is_nothing_to_save(two: Group, tmp_path: Path) -> None:
    config = {"strategy": "gossip"}
    said = two.refused(saved_apart, "StateError", config=config, folder=str(tmp_path))
    assert "call strategy.sync() first" in same(said)


@pytest.mark.parametrize("name", ["gossip", "sgp"])
def test_a_lost_rank_is_named(name: str, pools: Pools) -> None:
    group = pools.fresh(4)
    config = settings("int8", strategy=name, exchange={"silence_s": 5.0})
    outcomes = group.outcomes(lost, config=config, step=4)
    group.end()
    for outcome in outcomes:
        if outcome.rank != 1:
            assert outcome.value is not None, outcome.explain()
            assert outcome.value[0] == 1
