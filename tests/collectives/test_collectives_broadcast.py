"""Every broadcast on a virtual clock: the bytes arrive, at the cost that its stages say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_collectives_algorithms import due_s
from test_collectives_direct import run_all

from compressa.collectives import Program, barrier
from compressa.collectives.broadcast import (
    ASSUMED,
    BROADCASTS,
    SCATTER,
    Broadcast,
    chosen,
    k_nomial,
    multi_source,
    ring,
)
from compressa.collectives.broadcast_multi_source import best_laps
from compressa.collectives.broadcast_ring import best_chunks
from compressa.collectives.cost import Link
from compressa.collectives.passing import pass_hop
from compressa.collectives.rank_group import RankGroup
from compressa.testing.inputs import generator
from compressa.transports.loopback import Loopback

LINK = Link(message_s=1e-3, byte_s=1e-6)
CASES = {
    "binomial": k_nomial(2),
    "quadrinomial": k_nomial(4),
    "multi_source": multi_source(1),
    "multi_source_laps": multi_source(4),
    "ring_direct": ring(1),
    "ring_pipelined": ring(16),
    "scatter": SCATTER,
}


def bring(
    broadcast: Broadcast, size: int, sources: list[int], data: torch.Tensor, link: Link = LINK
) -> float:
    """Broadcast, see that all have it, and return how long it took."""
    loopback = Loopback(size, message_s=link.message_s, bandwidth_bytes_per_s=1 / link.byte_s)
    held = [data.clone() if rank in sources else torch.zeros_like(data) for rank in range(size)]

    def program(rank: int) -> Program[None]:
        return broadcast(held[rank], RankGroup.everyone(rank, size), sources)

    assert run_all(loopback, program) == [None] * size
    assert all(torch.equal(h, data) for h in held)
    return loopback.clock.now_s


def some_bytes(size_bytes: int) -> torch.Tensor:
    return torch.randint(256, (size_bytes,), dtype=torch.uint8, generator=generator(size_bytes))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(
    ranks=st.integers(1, 17).flatmap(lambda n: st.permutations(range(n))),
    count=st.integers(1, 17),
    size_bytes=st.sampled_from([0, 1, 64, 1000, 5000]),
)
def test_the_bytes_come_to_all(name: str, ranks: list[int], count: int, size_bytes: int) -> None:
    bring(CASES[name].broadcast, len(ranks), ranks[:count], some_bytes(size_bytes))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_it_takes_as_long_as_its_stages_say(name: str, count: int) -> None:
    data, algorithm = some_bytes(1 << 16), CASES[name]
    for size in (4, 5, 7, 8, 13):
        sources = [i * size // count for i in range(count)]
        due = due_s(algorithm.stages(data.numel(), size, count), LINK)
        took_s = bring(algorithm.broadcast, size, sources, data)
        assert took_s == pytest.approx(due, rel=0.02), size


@pytest.mark.parametrize("name", ["binomial", "quadrinomial"])
def test_it_takes_as_long_as_its_stages_say_on_hundreds_of_ranks(name: str) -> None:
    data, algorithm = some_bytes(1 << 12), CASES[name]
    due = due_s(algorithm.stages(data.numel(), 256, 1), LINK)
    assert bring(algorithm.broadcast, 256, [3], data) == pytest.approx(due, rel=0.02)


def test_as_many_sources_as_receivers_reach_the_floor() -> None:
    data, link = some_bytes(1 << 17), Link(message_s=1e-5, byte_s=1e-6)
    took_s = bring(multi_source(1).broadcast, 8, [0, 1, 2, 3], data, link)
    assert data.numel() * link.byte_s / took_s > 0.95


def test_rounds_fill_the_ring_faster() -> None:
    data, link = some_bytes(1 << 19), Link(message_s=1e-5, byte_s=1e-6)
    once, often = (bring(multi_source(g).broadcast, 14, [0, 1], data, link) for g in (1, 8))
    assert once > 1.4 * data.numel() * link.byte_s
    assert often < 1.08 * data.numel() * link.byte_s


def test_the_best_number_of_chunks_and_rounds_costs_least() -> None:
    size_bytes, ranks, link = 1 << 24, 20, LINK
    for make, best, sources in (
        (ring, best_chunks(size_bytes, ranks, link), 1),
        (multi_source, best_laps(size_bytes, ranks, 1, link), 1),
        (multi_source, best_laps(size_bytes, ranks, 3, link), 3),
    ):
        tried = range(1, 2 * best + 2)
        costs = {n: link.time_s(make(n).stages(size_bytes, ranks, sources)) for n in tried}
        assert 1 < best == pytest.approx(min(costs, key=costs.__getitem__), abs=1)


def test_free_messages_have_no_best_size() -> None:
    with pytest.raises(ValueError, match="ever smaller"):
        best_chunks(1000, 8, Link(0.0, 1e-6))
    with pytest.raises(ValueError, match="ever smaller"):
        best_laps(1000, 8, 2, Link(0.0, 1e-6))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sources", [[], [0, 0], [3], [-1]])
def test_sources_that_are_not_indices_are_refused(name: str, sources: list[int]) -> None:
    program = CASES[name].broadcast(some_bytes(8), RankGroup.everyone(0, 3), sources)
    with pytest.raises(ValueError, match="not different members"):
        next(program)


@pytest.mark.parametrize("choice", ["auto", *BROADCASTS])
@pytest.mark.parametrize(("size", "sources"), [(1, [0]), (2, [1]), (7, [2, 3]), (4, [0, 1, 2, 3])])
def test_what_is_chosen_by_name_brings_the_bytes(
    choice: str, size: int, sources: list[int]
) -> None:
    algorithm = chosen(choice, 20_000, size, len(sources))
    bring(algorithm.broadcast, size, sources, some_bytes(20_000))


@pytest.mark.parametrize("size_bytes", [10, 10_000, 1_000_000, 1 << 25])
@pytest.mark.parametrize(("ranks", "sources"), [(2, 1), (8, 1), (8, 3), (64, 1)])
def test_no_choice_takes_less_than_what_is_chosen_by_itself(
    size_bytes: int, ranks: int, sources: int
) -> None:
    auto, *others = (
        ASSUMED.time_s(
            chosen(choice, size_bytes, ranks, sources).stages(size_bytes, ranks, sources)
        )
        for choice in ("auto", *BROADCASTS)
    )
    assert auto == min(others)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13])
def test_nobody_passes_a_barrier_before_all_have_come(size: int) -> None:
    come: list[int] = []
    loopback = Loopback(size, message_s=1e-3, bandwidth_bytes_per_s=1e6)

    def program(rank: int) -> Program[None]:
        word = torch.zeros(1, dtype=torch.uint8)
        for hop in range(size - 1):  # each comes after the one before it
            incoming = {hop: word} if rank == hop + 1 else {}
            if rank == hop:
                come.append(rank)
            yield from pass_hop({hop + 1: word} if rank == hop else {}, incoming)
        if rank == size - 1:
            come.append(rank)
        yield from barrier.barrier(RankGroup.everyone(rank, size), torch.device("cpu"))
        assert len(come) == size

    assert run_all(loopback, program) == [None] * size
    assert len(barrier.stages(size)) == (size - 1).bit_length()
