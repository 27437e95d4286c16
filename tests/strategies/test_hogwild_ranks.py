"""hogwild on real ranks: one memory, and nothing is left of it."""

from __future__ import annotations

import itertools
import math
import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _attached import Normed, Regression, sgd, take_step, values_of
from _ranks import Group, Pools, same
from torch import nn
from torch.nn import functional

import compressa

pytestmark = pytest.mark.ranks

HOGWILD = {"strategy": "hogwild"}


def in_turns() -> list[Any]:
    """Have ranks step one after the other; return parameters after each turn, and at the end."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Regression()
    with compressa.attach(model, sgd(model), HOGWILD) as strategy:
        found = []
        for turn in range(2 * size):
            if turn % size == rank:
                take_step(strategy, turn)
            strategy.sync()
            found.append(values_of(model))
            strategy.sync()
    with torch.no_grad():
        model.first.fill_(rank)  # memory of its own again
    dist.barrier()
    return [*found, model.first.flatten()[0].item()]


def other_dtypes() -> list[Any]:
    """Return what a model of all kinds of tensors holds before and after it is shared."""
    model = Normed()
    model.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    model.small = nn.Parameter(torch.randn(5).bfloat16())
    model.empty = nn.Parameter(torch.zeros(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with compressa.attach(model, optimizer, HOGWILD) as strategy:
        with torch.no_grad():
            if dist.get_rank() == 1:
                model.phase.mul_(2)
                model.small.add_(1)
                model.norm.running_mean.fill_(3.0)
        strategy.sync()
        kept = {n: str(t.tolist()) for n, t in model.state_dict().items()}
        strategy.sync()
    return [kept]


def sparse(*, steps: int) -> float:
    """Train a sparse linear model, all at the same time; return the loss on what is true."""
    draw = torch.Generator().manual_seed(3)
    truth = torch.randn(2000, generator=draw)
    own = torch.Generator().manual_seed(dist.get_rank())
    model = nn.EmbeddingBag(2000, 1, mode="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with compressa.attach(model, optimizer, HOGWILD) as strategy:
        for _ in range(steps):
            words = torch.randint(2000, (16, 4), generator=own)
            optimizer.zero_grad()
            error = strategy.model(words)[:, 0] - truth[words].sum(1)
            functional.mse_loss(error, torch.zeros_like(error), reduction="sum").backward()
            strategy.step()
        strategy.sync()
        error = (model.weight[:, 0] - truth).square().mean()
        return float(error.detach() / truth.square().mean())


def separable(*, elems: int, steps: int, rate: float) -> list[float]:
    """Minimise f(x) = 1/2 |x - a|^2 from 0, where each a_i is 1 or -1, an element of it in a step.

    Args:
        elems: Of x.
        steps: Of each rank.
        rate: By which a step follows `elems` times the gradient of its term of f.

    Returns:
        f at first and in the end.
    """
    wanted = torch.ones(elems)
    wanted[::2] = -1.0
    drawn = torch.Generator().manual_seed(dist.get_rank())
    model = nn.EmbeddingBag(elems, 1, mode="sum", sparse=True)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    found = [float((model.weight[:, 0] - wanted).square().sum().detach() / 2)]
    with compressa.attach(model, optimizer, HOGWILD) as strategy:
        for _ in range(steps):
            index = torch.randint(elems, (1, 1), generator=drawn)
            optimizer.zero_grad()
            (elems / 2 * (strategy.model(index)[0, 0] - wanted[index[0, 0]]).square()).backward()
            strategy.step()
        strategy.sync()
        found.append(float((model.weight[:, 0] - wanted).square().sum().detach() / 2))
    return found


def lost_and_left() -> list[Any]:
    """Have rank 1 end; return what the other is told, and how many such memories it has open."""
    model = Regression()
    with compressa.attach(model, sgd(model), HOGWILD) as strategy:
        if dist.get_rank() == 1:
            os._exit(3)
        try:
            for number in range(10_000):
                take_step(strategy, number)
                time.sleep(0.001)
        except compressa.PeerLost as error:
            files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
            return [error.rank, sum("hogwild" in file for file in files)]
    return []


def test_what_one_rank_writes_the_others_read(two: Group) -> None:
    first, second = two.run(in_turns)
    assert first[:-1] == second[:-1]
    for before, after in itertools.pairwise(first):
        assert before != after
    assert (first[-1], second[-1]) == (0.0, 1.0)


def test_tensors_of_any_kind_are_shared(two: Group) -> None:
    (found,) = same(two.run(other_dtypes))
    assert found["norm.running_mean"] == "[3.0, 3.0, 3.0]"
    assert found["empty"] == "[]"


def test_sparse_updates_at_the_same_time_converge(four: Group) -> None:
    assert max(four.run(sparse, steps=1500)) < 0.05


def test_it_takes_no_more_steps_than_the_theorem_says(two: Group) -> None:
    """Niu et al. (2011), Proposition 4.1, of one element in a step of n, and so c = L = Omega = 1,
    M = n, and Delta = rho = 1 / n; with tau = 4 updates of the other rank between a rank's reading
    and its writing.
    """
    n, tau, share, due = 16, 4, 0.99, 2.0
    rho = delta = 1 / n
    late = 6 * tau * rho
    rate = share * due / (2 * n**2 * (1 + late + 4 * tau**2 * delta**0.5))
    first = n / 2
    steps = 2 * n**2 * (1 + late + 6 * tau**2 * delta**0.5) * math.log(n / due) / (share * due)
    found = same(two.run(separable, elems=n, steps=math.ceil(steps / 2), rate=rate))
    assert found[0] == first
    assert found[1] <= due


def test_a_lost_rank_is_named_and_nothing_is_left(pools: Pools) -> None:
    group = pools.fresh(2)
    outcomes = group.outcomes(lost_and_left)
    group.end()
    assert outcomes[0].value == [1, 0], outcomes[0].explain()
