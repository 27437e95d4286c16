"""sgp on real ranks: the iterates are the paper's, and no mass is made or lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from _attached import Regression, history, resumed, saved_apart, sgd, take_step
from _averaging_oracle import Array, initial
from _push_oracle import trained
from _ranks import Group, Pools, same, settings

import compressa
from compressa.collectives.digraphs import DIGRAPHS, Digraph, weighted

pytestmark = pytest.mark.ranks

UNEVEN = [[0.5, 0.0, 0.2], [0.3, 0.6, 0.0], [0.2, 0.4, 0.8]]
"""Columns sum to 1, rows do not: ranks come to hold more than others."""


def matrices(graph: Digraph) -> list[Array]:
    found = []
    for meeting in range(len(graph.meetings)):
        p = np.zeros((graph.size, graph.size))
        for rank in range(graph.size):
            p[rank, rank] = graph.kept(rank, meeting)
            for peer, share in graph.senders(rank, meeting).items():
                p[rank, peer] = share
        found.append(p)
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("graph", "every"), [("exponential", 1), ("ring", 2)])
def test_the_iterates_are_the_paper_s(graph: str, every: int, ranks: int, pools: Pools) -> None:
    strategy = {"name": "sgp", "every": every, "graph": graph}
    found = pools.get(ranks).run(history, config={"strategy": strategy}, steps=8)
    check(found, trained(matrices(DIGRAPHS[graph](ranks)), ranks, 8, every))


def test_weights_that_become_uneven_are_divided_by(pools: Pools) -> None:
    strategy = {"name": "sgp", "weights": UNEVEN}
    found = pools.get(3).run(history, config={"strategy": strategy}, steps=12)
    check(found, trained(matrices(weighted(UNEVEN)), 3, 12, 1))


def check(found: list[Any], due: list[Any]) -> None:
    for step, ranks in enumerate(due):
        for rank, values in enumerate(ranks):
            for name, value in values.items():
                got = found[rank][step][name]
                np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5, err_msg=f"{step}")
    same([each[-1] for each in found])


def masses(*, config: Any, steps: int) -> list[Any]:
    """Return what this rank's steps added, its x and w after the last push, and what sync gives."""
    net = Regression()
    with compressa.attach(net, sgd(net), config) as strategy:
        added = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in _named(net)}
        step = strategy.optimizer.step

        def noted(*arguments: Any) -> Any:
            before = {name: p.double() for name, p in _named(net)}
            step(*arguments)
            for name, p in _named(net):
                added[name] += p.double() - before[name]

        strategy.optimizer.step = noted  # type: ignore[method-assign]
        for number in range(steps):
            take_step(strategy, number)
        w = strategy.weight.item()
        x = {name: (p.double() * w).tolist() for name, p in _named(net)}
        strategy.sync()
        end = {name: p.tolist() for name, p in _named(net)}
        return [{n: a.tolist() for n, a in added.items()}, x, w, end]


def _named(net: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, p.detach()) for name, p in net.named_parameters()]


@pytest.mark.parametrize("compressor", ["none", "int8", "int4", "natural"])
@pytest.mark.parametrize("graph", ["exponential", "uneven"])
def test_mass_is_conserved_whatever_a_codec_loses(
    compressor: str, graph: str, pools: Pools
) -> None:
    chosen = {"weights": UNEVEN} if graph == "uneven" else {"graph": graph}
    config = settings(compressor, strategy={"name": "sgp", **chosen}, dense_below={"elems": 0})
    found = pools.get(3).run(masses, config=config, steps=20)
    assert sum(w for _, _, w, _ in found) == pytest.approx(3.0, rel=1e-14)
    if graph == "uneven":
        assert len({w for _, _, w, _ in found}) == 3
    for name, value in initial().items():
        due = 3 * value + sum(np.array(added[name]) for added, _, _, _ in found)
        held = sum(np.array(x[name]) for _, x, _, _ in found)
        np.testing.assert_allclose(held, due, rtol=1e-5, atol=2e-5)
        for _, _, _, end in found:
            np.testing.assert_allclose(end[name], due / 3, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compressor", ["none", "int8"])
def test_a_resumed_run_repeats_its_bits(compressor: str, two: Group, tmp_path: Path) -> None:
    config = settings(compressor, strategy="sgp", dense_below={"elems": 10})
    found = two.run(resumed, config=config, folder=str(tmp_path), steps=5, models=True)
    for straight, again in found:
        assert straight == again
    same([values for (values, _), _ in found])


def test_between_two_syncs_there_is_nothing_to_save(two: Group, tmp_path: Path) -> None:
    config = {"strategy": "sgp"}
    said = two.refused(saved_apart, "StateError", config=config, folder=str(tmp_path))
    assert "call strategy.sync() first" in same(said)


def attached_in_16_bits(*, config: Any) -> None:
    net = Regression().bfloat16()
    compressa.attach(net, sgd(net), config).close()


def test_what_would_round_mass_away_or_is_of_other_ranks_is_refused(two: Group) -> None:
    said = two.refused(attached_in_16_bits, "ConfigError", config={"strategy": "sgp"})
    assert "small shares by which sgp moves them" in same(said)
    strategy = {"name": "sgp", "weights": UNEVEN}
    said = two.refused(history, "ConfigError", config={"strategy": strategy}, steps=1)
    assert "strategy.weights has 3 rows, and there are 2 ranks" in same(said)


def switched(*, config: Any, to: Any) -> list[Any]:
    """Switch compressors between two pushes; return w before and after."""
    net = Regression()
    with compressa.attach(net, sgd(net), config) as strategy:
        at = strategy.handle.switch(to)
        weights = []
        for number in range(at + 2):
            take_step(strategy, number)
            weights.append(strategy.weight.item())
        return [dist.get_rank(), weights, sorted(strategy.stats().compressors)]


def test_weights_survive_a_switch(pools: Pools) -> None:
    strategy = {"name": "sgp", "weights": UNEVEN}
    config = settings("none", strategy=strategy, dense_below={"elems": 0})
    to = {"compressor": "int8", "dense_below": {"elems": 0}}
    found = pools.get(3).run(switched, config=config, to=to)
    w = np.ones(3)
    for meeting in range(len(found[0][1])):
        w = np.array(UNEVEN) @ w
        np.testing.assert_allclose([each[1][meeting] for each in found], w, rtol=1e-14)
    assert found[0][2] == ["int8", "none"]
