"""PushSum on a virtual clock: mass is conserved however late messages come, whatever a codec loses.

Ranks wait for those only of whom they hear, so with random delays they are meetings apart.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.aggregators.base import Aggregator, State, StepContext, World
from compressa.aggregators.single import build_aggregator
from compressa.codecs import Fp16, Int4, Int8, Natural, NoCompression, TopK
from compressa.codecs.base import Codec
from compressa.collectives.base import Program
from compressa.collectives.digraphs import Digraph, exponential, ring, weighted
from compressa.collectives.neighbours import neighbours
from compressa.engine.driver import Driver
from compressa.engine.task import Task
from compressa.errors import PeerLost
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.rank import compute_now
from compressa.transports.loopback import Loopback

ELEMS = 37
CODECS: list[Codec] = [NoCompression(), Int8(), Int4(), Natural(), Fp16(), TopK(density=0.2)]


def skewed(size: int) -> Digraph:
    """Each rank keeps another share, and sends the rest to the next two."""
    p = np.zeros((size, size))
    for rank in range(size):
        kept = 0.2 + 0.6 * rank / size
        p[rank, rank] += kept
        p[(rank + 1) % size, rank] += 0.75 * (1 - kept)
        p[(rank + 2) % size, rank] += 0.25 * (1 - kept)
    return weighted(p.tolist())


GRAPHS: list[Callable[[int], Digraph]] = [exponential, ring, skewed]


class Rank:
    """One that pushes values and a weight, and changes its values by itself between meetings."""

    def __init__(self, rank: int, graph: Digraph, codec: Codec, values: torch.Tensor) -> None:
        self.rank, self.values = rank, values
        self.weight = torch.ones(1, dtype=torch.float64)
        self.draw = np.random.default_rng([rank, graph.size])
        self.added = np.zeros(ELEMS)
        self.met = 0
        world = World(rank, graph.size, 0, "auto", State(), graph=graph)
        of_values = ParameterInfo(1, "values", (ELEMS,))
        of_weight = ParameterInfo(0, "weight", (2,), exact=True)
        self._aggregators = [
            build_aggregator(c, Layout(unit, (Segment(p, 0, p.elems),)), world)
            for unit, (c, p) in enumerate([(codec, of_values), (NoCompression(), of_weight)])
        ]

    def push(self, meeting: int) -> Program[None]:
        change = self.draw.normal(size=ELEMS).astype(np.float32)
        self.values += torch.from_numpy(change)
        self.added += change
        context = StepContext(meeting)
        for aggregator, x in zip(
            self._aggregators, (self.values, self.weight.view(torch.float32)), strict=True
        ):
            yield from _run(aggregator, x, context)
        self.met = meeting + 1


def _run(aggregator: Aggregator, x: torch.Tensor, context: StepContext) -> Program[None]:
    run = aggregator.run([x], context)
    request: Any = next(run)
    (round_,) = aggregator.rounds
    answer = yield from neighbours(**vars(request), exact=round_.exact)
    with contextlib.suppress(StopIteration):
        run.send(answer)


class Clocked:
    """Ranks that push on one virtual clock, with delays that are drawn for each message."""

    def __init__(self, ranks: Sequence[Rank], meetings: int, seed: int) -> None:
        late = random.Random(seed)
        self.ranks = ranks
        self.loopback = Loopback(len(ranks), delay=lambda *_: late.expovariate(1.0))
        self.errors: list[BaseException] = []
        self.apart = 0
        self._meetings = meetings
        clock = self.loopback.clock
        for rank, transport in zip(ranks, self.loopback.transports, strict=True):
            driver = Driver(
                transport,
                compute_now,
                lambda event: clock.at(clock.now_s, event),
                lambda: clock.now_s,
                1e9,
            )
            transport.failed = driver.fail
            clock.at(0.0, lambda rank=rank, driver=driver: self._begin(rank, driver, 0))

    def _begin(self, rank: Rank, driver: Driver, meeting: int) -> None:
        def finished(error: BaseException | None) -> None:
            met = [other.met for other in self.ranks]
            self.apart = max(self.apart, max(met) - min(met))
            if error is not None:
                self.errors.append(error)
            elif meeting + 1 < self._meetings:
                self._begin(rank, driver, meeting + 1)

        driver.start(Task(0, "push", meeting, rank.push(meeting), finished))


def made(size: int, graph: Digraph, codec: Codec) -> list[Rank]:
    draw = np.random.default_rng(size)
    values = [torch.from_numpy(draw.normal(size=ELEMS).astype(np.float32)) for _ in range(size)]
    return [Rank(number, graph, codec, x) for number, x in enumerate(values)]


def mass(ranks: Sequence[Rank]) -> np.ndarray:
    return np.sum([rank.values.double().numpy() for rank in ranks], axis=0)


@settings(deadline=None, max_examples=80)
@given(
    size=st.integers(2, 9),
    graph=st.sampled_from(GRAPHS),
    codec=st.sampled_from(CODECS),
    meetings=st.integers(1, 12),
    seed=st.integers(0, 1 << 30),
)
def test_sums_are_conserved_however_late_messages_come(
    size: int, graph: Callable[[int], Digraph], codec: Codec, meetings: int, seed: int
) -> None:
    ranks = made(size, graph(size), codec)
    before = mass(ranks)
    world = Clocked(ranks, meetings, seed)
    world.loopback.clock.run()
    assert not world.errors
    assert [rank.met for rank in ranks] == [meetings] * size
    assert sum(float(rank.weight) for rank in ranks) == pytest.approx(size, rel=1e-14)
    due = before + sum(rank.added for rank in ranks)
    np.testing.assert_allclose(mass(ranks), due, rtol=1e-5, atol=2e-5)


def test_delays_have_ranks_be_meetings_apart() -> None:
    world = Clocked(made(9, ring(9), Int8()), 12, seed=1)
    world.loopback.clock.run()
    assert world.apart > 1


def mean_of(ranks: Mapping[int, Rank]) -> torch.Tensor:
    """As `compressa.strategies.sgp` has survivors begin anew: the mean of x / w."""
    return torch.stack([rank.values / rank.weight for rank in ranks.values()]).mean(0).float()


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(3, 8),
    graph=st.sampled_from(GRAPHS),
    lost=st.integers(0, 2),
    at_s=st.floats(0.1, 6.0),
    seed=st.integers(0, 1 << 30),
)
def test_what_is_lost_with_a_rank_is_made_anew_and_conserved_again(
    size: int, graph: Callable[[int], Digraph], lost: int, at_s: float, seed: int
) -> None:
    """Messages to and from it are lost on the way, and those of others that have failed by it."""
    ranks = made(size, graph(size), Int8())
    world = Clocked(ranks, 1000, seed)
    world.loopback.lose(lost, at_s=at_s)
    world.loopback.clock.run()
    assert len(world.errors) == size - 1
    assert all(isinstance(error, PeerLost) and error.rank == lost for error in world.errors)
    left = {rank.rank: rank for rank in ranks if rank.rank != lost}
    begun = mean_of(left)
    anew = [Rank(n, graph(size - 1), Int8(), begun.clone()) for n in range(size - 1)]
    again = Clocked(anew, 10, seed)
    again.loopback.clock.run()
    assert not again.errors
    assert sum(float(rank.weight) for rank in anew) == pytest.approx(size - 1, rel=1e-14)
    due = (size - 1) * begun.double().numpy() + sum(rank.added for rank in anew)
    np.testing.assert_allclose(mass(anew), due, rtol=1e-5, atol=5e-5)
