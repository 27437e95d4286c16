"""Fits of the cost model: exact where nothing disturbs, and robust where something does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.collectives.cost import Link
from compressa.engine.start.link_file import MOST_SPREAD, Figures
from compressa.link.chain import Ask, Timed
from compressa.link.fit import LEAST_ROUNDS, MOST_ROUNDS, byte_spread, fitted, middle
from compressa.link.operations import ADD, HOP, HOPS, PAIR
from compressa.link.texts import spread_text

RANKS = 4
LINKS = st.builds(Link, st.floats(0, 1e-3), st.floats(1e-10, 1e-6), st.floats(1e-11, 1e-9))
FACTORS = st.floats(1.0, 20.0)


class Network:
    """Ranks that would take just what a link says, but for rounds that are disturbed.

    Args:
        link: Their link.
        slower: By round, how many times as long everything takes; 1 for the rounds after these.
    """

    def __init__(self, link: Link, *slower: float) -> None:
        self.asked: list[Ask] = []
        self.took_s = 0.0
        self._link, self._slower = link, slower
        self.pair = Link(0.7 * link.message_s, 0.4 * link.byte_s)  # others would disturb it

    @property
    def rounds(self) -> int:
        return sum(ask.what == ADD for ask in self.asked)

    def __call__(self, ask: Ask) -> Timed:
        self.asked.append(ask)
        if ask.what == ADD:
            seconds = ask.size_bytes * self._link.reduce_s
        else:
            link, messages = (self._link, RANKS - 1) if ask.what == HOP else (self.pair, 1)
            seconds = HOPS * (messages * link.message_s + ask.size_bytes * link.byte_s)
        if self.rounds:  # sizes are chosen before the first round
            round_index = self.rounds - 1
            seconds *= self._slower[round_index] if round_index < len(self._slower) else 1.0
        self.took_s += seconds * (1 + max(ask.rounds, 1))
        return Timed([seconds], 2)

    def fitted(self) -> Figures:
        return fitted(RANKS, 0.2, self, ())


@given(link=LINKS)
def test_an_undisturbed_network_is_fitted_exactly(link: Link) -> None:
    network = Network(link)
    figures = network.fitted()
    assert figures.byte_s == pytest.approx(link.byte_s, rel=1e-6)
    assert figures.pair_byte_s == pytest.approx(network.pair.byte_s, rel=1e-6)
    assert figures.link.pair_byte_s == figures.pair_byte_s
    assert figures.link.pair_message_s == figures.pair_message_s
    assert figures.reduce_s == pytest.approx(link.reduce_s, rel=1e-6)
    # A message is what is left of a small time without its bytes.
    assert figures.message_s == pytest.approx(link.message_s, rel=1e-3, abs=1e-9)
    assert figures.byte_spread == pytest.approx(0.0, abs=1e-9)
    assert not figures.disturbed


@given(link=LINKS, round_index=st.integers(0, LEAST_ROUNDS - 1), slower=FACTORS)
def test_one_disturbed_round_changes_nothing(link: Link, round_index: int, slower: float) -> None:
    disturbed = Network(link, *[1.0] * round_index, slower)
    figures = disturbed.fitted()
    assert figures.link == Network(link).fitted().link
    if disturbed.rounds == MOST_ROUNDS:
        assert not figures.disturbed


@given(
    link=st.builds(Link, st.floats(0, 1e-3), st.floats(1e-10, 1e-8), st.floats(1e-11, 1e-9)),
    slower=st.lists(st.floats(1.2, 20.0), min_size=2, max_size=3),
)
def test_where_two_or_three_of_five_are_disturbed_there_is_another_go(
    link: Link, slower: list[float]
) -> None:
    network = Network(link, *slower)
    figures = network.fitted()
    assert network.rounds == 2 * MOST_ROUNDS
    assert figures.link == Network(link).fitted().link


@given(link=LINKS, slower=st.lists(st.floats(1.3, 3.0), min_size=2, max_size=2, unique=True))
def test_a_network_that_never_rests_is_said_to_be_disturbed(
    link: Link, slower: list[float]
) -> None:
    low, high = sorted(slower)
    figures = Network(link, *[1.0, low, high + 0.3] * MOST_ROUNDS).fitted()
    assert figures.disturbed
    assert "measure again" in spread_text(figures.byte_spread)


@given(
    calm=st.lists(st.floats(1.0, 1.2), min_size=3, max_size=9),
    wild=st.lists(st.floats(0.01, 100.0), max_size=4),
    link=LINKS,
)
def test_what_is_fitted_lies_among_the_calm_rounds_while_they_are_most(
    calm: list[float], wild: list[float], link: Link
) -> None:
    wild = wild[: len(calm) - 1]
    rounds = [
        {(HOP, 1): factor * link.message_s, (HOP, 2): factor * link.byte_s, (PAIR, 1): factor}
        for factor in (*wild, *calm)
    ]
    nearly = 1e-12
    for key, found in middle(rounds).items():
        among = [times[key] for times in rounds[len(wild) :]]
        assert min(among) * (1 - nearly) <= found <= max(among) * (1 + nearly)


@given(several=st.integers(2, 3), slower=st.floats(1 + 2 * MOST_SPREAD, 20.0))
def test_two_or_three_rounds_of_five_that_are_disturbed_are_seen(
    several: int, slower: float
) -> None:
    factors = [slower] * several + [1.0] * (5 - several)
    rounds = [{(HOP, 0): 0.0, (HOP, 1): factor} for factor in factors]
    assert byte_spread(rounds) > MOST_SPREAD


@pytest.mark.parametrize("byte_s", [1e-10, 1e-8, 1e-7, 1e-6])
def test_a_fit_takes_seconds_whatever_the_network(byte_s: float) -> None:
    network = Network(Link(1e-4, byte_s, 1e-10))
    network.fitted()
    assert network.rounds == (MOST_ROUNDS if byte_s < 1e-6 else LEAST_ROUNDS)
    assert network.took_s < (12.0 if byte_s < 1e-6 else 40.0)
