"""Predicted times: the plain formulas, what segments gain, and the choice by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_collectives_algorithms import sum_all

from compressa.collectives.algorithms import ALGORITHMS, segmented, segments_of
from compressa.collectives.choice import BACKEND, CANDIDATES, ROUND_ROBIN, Costs, formula_s, points
from compressa.collectives.cost import Link, Stage, Way
from compressa.transports.loopback import Loopback

LINKS = st.builds(Link, st.floats(0, 1e-2), st.floats(1e-11, 1e-6), st.floats(0, 1e-9))
FACTORS = st.floats(0, 1)


def stage(
    messages: int, size: int, reduced: int, way: Way, depth: int | None, part: float
) -> Stage:
    """Of those that send one way only, at most half the ranks send."""
    return Stage(messages, size, reduced, way, depth, part if way == "both" else part / 2)


STAGES = st.lists(
    st.builds(
        stage,
        st.integers(0, 9),
        st.integers(0, 10**9),
        st.integers(0, 10**9),
        st.sampled_from(["both", "in", "out"]),
        st.none() | st.integers(0, 6),
        FACTORS,
    ),
    max_size=6,
)
NAMES = st.sampled_from(list(ALGORITHMS))
RANKS = st.integers(2, 40)
SIZES = st.integers(4, 10**9)
EVEN = [
    *((name, size) for name in ALGORITHMS for size in (2, 4, 8)),
    *((name, 6) for name in ("all_to_all", "master_worker", "recursive_doubling", "ring")),
    *((name, 3) for name in ("all_to_all", "master_worker", "recursive_doubling", "tree")),
]
BUNCHED = {("tree", 4), ("tree", 6), ("tree", 8), ("halving_doubling", 3), ("halving_doubling", 6)}
FEW_IN_TREES = [("tree", ranks, segments) for ranks in (2, 3, 4, 6, 8) for segments in (2, 3)]
"""Few segments share the port of a root as is predicted."""
SEGMENTED = [(*case, segments) for case in {*EVEN} | BUNCHED for segments in (3, 8)]


def plain_s(link: Link, stages: list[Stage]) -> float:
    return sum(
        stage.messages * link.message_s
        + stage.port_bytes * link.byte_s
        + stage.reduced_bytes * link.reduce_s
        for stage in stages
    )


@given(link=LINKS, stages=STAGES)
def test_one_segment_takes_what_the_plain_formula_says(link: Link, stages: list[Stage]) -> None:
    assert link.time_s(stages) == pytest.approx(plain_s(link, stages), rel=1e-12)


@given(link=LINKS, stages=STAGES, segments=st.integers(1, 9))
def test_segments_take_as_long_as_the_busiest_part_and_no_longer_than_in_turn(
    link: Link, stages: list[Stage], segments: int
) -> None:
    took_s = link.time_s(stages, segments)
    nearly = 1 - 1e-12
    assert took_s <= segments * plain_s(link, stages) / nearly
    assert took_s >= nearly * plain_s(link, stages)
    for way in ("in", "out"):
        port_s = plain_s(
            link,
            [stage._replace(reduced_bytes=0) for stage in stages if stage.way in (way, "both")],
        )
        assert took_s >= nearly * segments * port_s
    assert took_s >= nearly * segments * link.reduce_s * sum(
        stage.reduced_bytes for stage in stages
    )


def with_pair(link: Link, message: float, byte: float) -> Link:
    """A pair takes such shares of what it takes all."""
    message_s, byte_s = message * link.message_s, byte * link.byte_s
    return replace(link, pair_message_s=message_s, pair_byte_s=byte_s)


@given(link=LINKS, stages=STAGES, segments=st.integers(1, 9), message=FACTORS, byte=FACTORS)
def test_who_is_not_disturbed_takes_less_but_not_less_than_the_share_of_all(
    link: Link, stages: list[Stage], segments: int, message: float, byte: float
) -> None:
    pair = with_pair(link, message, byte)
    took_s, nearly = pair.time_s(stages, segments), 1 - 1e-12
    assert took_s <= link.time_s(stages, segments) / nearly
    alone = replace(link, message_s=message * link.message_s, byte_s=byte * link.byte_s)
    assert took_s >= nearly * plain_s(alone, stages)
    shares = [hop.share * plain_s(link, [hop._replace(reduced_bytes=0)]) for hop in stages]
    assert took_s >= nearly * segments * sum(shares)


@given(link=LINKS, stages=STAGES, segments=st.integers(1, 9), message=FACTORS, byte=FACTORS)
def test_where_all_have_the_same_to_do_a_pair_counts_for_nothing(
    link: Link, stages: list[Stage], segments: int, message: float, byte: float
) -> None:
    both = [hop._replace(way="both", share=1.0) for hop in stages]
    pair = with_pair(link, message, byte)
    assert pair.time_s(both, segments) == link.time_s(both, segments)


@given(
    link=LINKS, name=NAMES, ranks=RANKS, segments=st.integers(1, 8), sizes=st.tuples(SIZES, SIZES)
)
def test_more_bytes_take_no_less_time_in_as_many_segments(
    link: Link, name: str, ranks: int, segments: int, sizes: tuple[int, int]
) -> None:
    fewer_s, more_s = (
        link.time_s(ALGORITHMS[name].stages(size, ranks), segments) for size in sorted(sizes)
    )
    assert fewer_s <= more_s * (1 + 1e-12)


@given(link=LINKS, name=st.sampled_from(CANDIDATES), ranks=RANKS, size_bytes=SIZES)
def test_no_formula_is_below_what_the_busiest_port_must_carry(
    link: Link, name: str, ranks: int, size_bytes: int
) -> None:
    segments = segments_of(size_bytes, ranks)
    least_s = link.byte_s * 2 * (ranks - 1) / ranks * (size_bytes - segments)
    assert formula_s(link, name, size_bytes, ranks) >= least_s * (1 - 1e-9)


def segmented_s(name: str, ranks: int, segments: int, link: Link, elems: int = 48 * 1024) -> float:
    """How long a sum in segments takes on the virtual clock."""
    values = [torch.full((elems,), rank, dtype=torch.int32) for rank in range(ranks)]
    loopback = Loopback(ranks, message_s=link.message_s, bandwidth_bytes_per_s=1 / link.byte_s)
    sum_all(loopback, segmented(ALGORITHMS[name], segments), values)
    return loopback.clock.now_s


@pytest.mark.parametrize(("name", "ranks", "segments"), sorted({*SEGMENTED, *FEW_IN_TREES}))
def test_segments_take_as_long_as_is_predicted(name: str, ranks: int, segments: int) -> None:
    """Or somewhat longer, if many come in bunches."""
    link = Link(1e-5, 1e-6)
    stages = ALGORITHMS[name].stages(4 * 48 * 1024 // segments, ranks)
    share = segmented_s(name, ranks, segments, link) / link.time_s(stages, segments)
    if (name, ranks) in BUNCHED and (name, ranks, segments) not in FEW_IN_TREES:
        assert 0.99 <= share <= 1.3
    else:
        assert share == pytest.approx(1.0, rel=0.03 if name == "tree" else 0.02)


def test_a_tree_of_many_segments_takes_little_more_than_half_its_plain_time() -> None:
    link, n = Link(0.0, 1e-8), 16 << 20
    plain = link.time_s(ALGORITHMS["tree"].stages(n, 2))
    cut = formula_s(link, "tree", n, 2)
    assert cut == pytest.approx(plain * (8 + 1) / (2 * 8))


class TestChoice:
    """By which algorithm a sum is predicted to take the least time."""

    def test_where_messages_cost_fewest_hops_are_chosen_and_where_bytes_do_fewest_bytes(
        self,
    ) -> None:
        costs = Costs(Link(1e-3, 1e-9, 1e-10))
        assert costs.best(1024, 8, backend=False) == "recursive_doubling"
        large = costs.best(100 << 20, 8, backend=False)
        assert large in ("ring", "halving_doubling", ROUND_ROBIN)

    @given(
        link=LINKS,
        times=st.lists(st.tuples(SIZES, st.floats(1e-6, 10)), min_size=1, max_size=4),
        name=st.sampled_from(CANDIDATES),
        ranks=RANKS,
    )
    def test_what_was_measured_is_predicted(
        self, link: Link, times: list[tuple[int, float]], name: str, ranks: int
    ) -> None:
        known = dict(times)
        costs = Costs(link, points(link, ranks, [(name, *item) for item in known.items()]))
        for size_bytes, seconds in known.items():
            assert costs.time_s(name, size_bytes, ranks) == pytest.approx(seconds, rel=1e-9)

    @given(link=LINKS, size_bytes=SIZES, ranks=RANKS)
    def test_between_two_measurements_a_formula_is_off_by_something_between(
        self, link: Link, size_bytes: int, ranks: int
    ) -> None:
        base = [formula_s(link, "ring", size, ranks) for size in (1000, 10**6)]
        times = [("ring", 1000, 2 * base[0]), ("ring", 10**6, 3 * base[1])]
        costs = Costs(link, points(link, ranks, times))
        assert 2 * (1 - 1e-9) <= costs.factor("ring", size_bytes) <= 3 * (1 + 1e-9)

    @given(link=LINKS, size_bytes=SIZES, ranks=RANKS)
    def test_the_fastest_is_chosen_and_the_backend_only_where_it_was_measured(
        self, link: Link, size_bytes: int, ranks: int
    ) -> None:
        assert Costs(link).best(size_bytes, ranks, backend=True) != BACKEND
        fast = points(link, ranks, [(BACKEND, size_bytes, 1e-12)])
        assert Costs(link, fast).best(size_bytes, ranks, backend=True) == BACKEND
        for costs in (Costs(link), Costs(link, fast)):
            chosen = costs.best(size_bytes, ranks, backend=False)
            assert chosen != BACKEND
            least_s = min(costs.time_s(name, size_bytes, ranks) for name in ALGORITHMS)
            assert costs.time_s(chosen, size_bytes, ranks) == least_s
