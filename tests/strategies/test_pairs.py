"""Pairs on a virtual clock: what is conserved, and that nobody waits, whatever messages take."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from _server_world import LoopbackSession
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.codecs import Bf16, Int8, NoCompression, TopK
from compressa.codecs.base import Codec
from compressa.codecs.payload import HEADER_BYTES
from compressa.collectives.graphs import GRAPHS
from compressa.errors import PayloadError
from compressa.parameter_server.programs import Programs
from compressa.parameters import ParameterInfo
from compressa.strategies.pairs import Pairs, pairs_of
from compressa.transports.loopback import Loopback

CODECS: list[Codec] = [NoCompression(), Int8(), Bf16(), TopK(density=0.5)]


class PairWorld:
    """Ranks that train at their own pace: a step adds what it is told to."""

    def __init__(
        self, loopback: Loopback, graph: str, codec: Codec, elems: int = 6, keys: int = 1
    ) -> None:
        size = loopback.size
        self.clock = loopback.clock
        infos = [ParameterInfo(i, f"key{i}", (elems,)) for i in range(keys)]
        self.sessions = [LoopbackSession(loopback, rank) for rank in range(size)]
        for session in self.sessions:
            session.peers = self.sessions
        self.values = [[torch.zeros(elems) for _ in infos] for _ in range(size)]
        self.own = [[torch.zeros(elems) for _ in infos] for _ in range(size)]
        self.began = [[torch.zeros(elems) for _ in infos] for _ in range(size)]
        self.steps = [0] * size
        self.programs = [Programs(session) for session in self.sessions]  # type: ignore[arg-type]
        self.pairs = [
            Pairs(programs, GRAPHS[graph](size), [(i, codec) for i in infos], values, 3, 0)
            for programs, values in zip(self.programs, self.values, strict=True)
        ]

    def step(self, rank: int, update: float = 0.0) -> None:
        for own in self.own[rank]:
            own += update
        self.pairs[rank].exchange(self.own[rank], self.began[rank])
        self.pairs[rank].ask()
        self.steps[rank] += 1

    def total(self) -> torch.Tensor:
        return torch.stack([torch.stack(values).double() for values in self.values]).sum(0)


def run(world: PairWorld, rng: random.Random, steps: int) -> float:
    """Have each rank take its steps, each as long as it takes; return the sum of updates."""
    added = 0.0

    def later(rank: int) -> None:
        world.clock.at(world.clock.now_s + rng.expovariate(1.0 + rank), lambda: step(rank))

    def step(rank: int) -> None:
        nonlocal added
        update = rng.uniform(-1, 1)
        added += update
        world.step(rank, update)
        if world.steps[rank] < steps:
            later(rank)

    for rank in range(len(world.values)):
        later(rank)
    world.clock.run()
    return added


def delayed(rng: random.Random, size: int) -> Loopback:
    mean_s = rng.choice([0.01, 0.3, 3.0])
    return Loopback(
        size, latency_s=0.001, delay=lambda sender, receiver, time_s: rng.expovariate(1 / mean_s)
    )


def test_nobody_waits_and_the_sum_is_conserved_in_10_000_schedules() -> None:
    """All steps are taken, and all questions answered: there is no deadlock."""
    rng = random.Random(5)
    for _ in range(10_000):
        size = rng.randint(2, 5)
        world = PairWorld(delayed(rng, size), rng.choice(list(GRAPHS)), NoCompression(), elems=1)
        added = run(world, rng, 3)
        assert world.steps == [3] * size
        assert all(pairs.answered for pairs in world.pairs)
        assert all(programs.error is None for programs in world.programs)
        assert float(world.total().sum()) == pytest.approx(added, abs=1e-5)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 7),
    graph=st.sampled_from(list(GRAPHS)),
    codec=st.sampled_from(CODECS),
    keys=st.integers(1, 3),
)
def test_the_sum_changes_by_steps_only(
    seed: int, size: int, graph: str, codec: Codec, keys: int
) -> None:
    rng = random.Random(seed)
    world = PairWorld(delayed(rng, size), graph, codec, keys=keys)
    added = run(world, rng, 12)
    assert all(programs.error is None for programs in world.programs)
    torch.testing.assert_close(
        world.total(), torch.full_like(world.total(), added), rtol=0, atol=1e-4
    )
    for rank, pairs in enumerate(world.pairs):  # both ends keep the same estimate
        for peer, mine in pairs._pairs.items():
            for pair, other in zip(mine, world.pairs[peer]._pairs[rank], strict=True):
                if pair.estimate is not None:
                    assert other.estimate is not None
                    assert torch.equal(pair.estimate, other.estimate)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("size", [2, 5, 8])
def test_ranks_come_to_the_mean(size: int, codec: Codec) -> None:
    rng = random.Random(1)
    world = PairWorld(delayed(rng, size), "complete", codec)
    for rank in range(size):
        world.own[rank][0] += torch.randn(6, generator=torch.Generator().manual_seed(rank))
        world.pairs[rank].exchange(world.own[rank], world.began[rank])
    mean = world.total()[0] / size
    for _ in range(400):
        for rank in range(size):
            world.step(rank)
        world.clock.run()
    for values in world.values:
        np.testing.assert_allclose(values[0], mean, atol=1e-4)


@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_pairs_mix_as_quickly_as_the_theorem_says(graph: str, size: int) -> None:
    """Boyd et al., "Randomized gossip algorithms" (2006): the expected squared distance from the
    mean shrinks with each pair by the second largest eigenvalue of E[W] at least.
    """
    meetings, edges = 12, pairs_of(GRAPHS[graph](size))
    asked: dict[int, list[int]] = {}
    for a, p in edges:
        asked.setdefault(a, []).append(p)
    mixing = np.eye(size)
    for a, p in edges:
        apart = np.eye(size)[a] - np.eye(size)[p]
        mixing -= np.outer(apart, apart) / (2 * len(asked) * len(asked[a]))
    shrinks = float(np.sort(np.linalg.eigvalsh(mixing))[-2])
    left = np.zeros(meetings)
    for seed in range(200):
        rng, made = random.Random(seed), torch.Generator().manual_seed(seed)
        world = PairWorld(Loopback(size), graph, NoCompression(), elems=1)
        for values in world.values:
            values[0].copy_(torch.randn(1, generator=made))
        began = variance(world)
        for meeting in range(meetings):
            world.pairs[rng.choice([*asked])].ask()
            world.clock.run()
            left[meeting] += variance(world) / began / 200
    assert (left <= shrinks ** np.arange(1, meetings + 1)).all(), (left, shrinks)


def variance(world: PairWorld) -> float:
    return float(torch.cat([values[0] for values in world.values]).var(correction=0))


def squared_gradients(seed: int, codec: Codec, steps: int) -> list[float]:
    """Four ranks minimise the mean of 1/2 |x - w_i|^2, with noise as large as what is learned.

    Returns:
        For each step of any rank, the squared gradient at the mean of all ranks.
    """
    found, size, rng = [], 4, random.Random(seed)
    made = torch.Generator().manual_seed(seed)
    world = PairWorld(delayed(rng, size), "complete", codec)
    wanted = torch.randn(size, 6, generator=made)

    def step(rank: int) -> None:
        (own,) = world.own[rank]
        own -= (own - wanted[rank] + torch.randn(6, generator=made)) / steps**0.5
        world.step(rank)
        found.append(float((world.total()[0] / size - wanted.double().mean(0)).square().sum()))
        if world.steps[rank] < steps:
            later(rank)

    def later(rank: int) -> None:
        world.clock.at(world.clock.now_s + rng.expovariate(1.0), lambda: step(rank))

    for rank in range(size):
        later(rank)
    world.clock.run()
    return found


@pytest.mark.parametrize("codec", [NoCompression(), Int8()], ids=lambda codec: codec.name)
def test_gradients_vanish_at_the_rate_of_the_theorem(codec: Codec) -> None:
    """Lian et al. (2018): at a learning rate of 1 / sqrt(K), the mean over K steps of the squared
    gradient at the mean of all ranks is O(1 / sqrt(K)), however late messages are.
    """

    def squared_gradient(steps: int) -> float:
        return float(np.mean([squared_gradients(seed, codec, steps) for seed in range(2)]))

    base = 64**0.5 * squared_gradient(64)
    for steps in (256, 1024):
        assert steps**0.5 * squared_gradient(steps) <= 1.25 * base


@pytest.mark.parametrize("size", range(2, 10))
@pytest.mark.parametrize("graph", GRAPHS)
def test_who_may_ask_whom_is_bipartite_and_connected(graph: str, size: int) -> None:
    edges = pairs_of(GRAPHS[graph](size))
    assert not {a for a, _ in edges} & {p for _, p in edges}
    if graph == "complete":
        assert len(edges) == (size // 2) * (size - size // 2)
    reached, grew = {0}, True
    while grew:
        more = {r for edge in edges if reached & set(edge) for r in edge}
        grew, reached = not more <= reached, reached | more
    assert reached == set(range(size))


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_no_payload_with_another_header_is_taken(byte: int) -> None:
    loopback = Loopback(2)
    world = PairWorld(loopback, "ring", Int8())
    transport = loopback.transports[0]
    send = transport.send

    def spoilt(peer: int, key: Any, buffer: torch.Tensor, *rest: Any) -> None:
        data = buffer.clone()
        data[byte] ^= 0xFF
        send(peer, key, data, *rest)

    transport.send = spoilt  # type: ignore[method-assign]
    world.step(0, 1.0)
    world.clock.run()
    assert all(isinstance(programs.error, PayloadError) for programs in world.programs)
    assert not world.values[1][0].any()
