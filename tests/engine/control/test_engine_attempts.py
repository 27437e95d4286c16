"""Calls that belong together find each other, whoever called alone before them."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.engine.control.attempts import Attempts

STAGES = 2  # lengths, then data


@dataclass
class Rank:
    """One rank of a virtual world: it makes calls, gives up, and hears of others."""

    attempts: Attempts = field(default_factory=Attempts)
    number: int | None = None  # of the call under way
    stage: int = 0
    token: str = ""
    came: defaultdict[tuple[int, int], dict[int, str]] = field(
        default_factory=lambda: defaultdict(dict)
    )


class World:
    """Ranks, and links that keep the order of what one rank sends to another."""

    def __init__(self, size: int) -> None:
        self.ranks = [Rank() for _ in range(size)]
        pairs = itertools.permutations(range(size), 2)
        self.links = {pair: deque[tuple[int, int, str]]() for pair in pairs}
        self.done: dict[int, dict[int, str]] = {}

    def call(self, number: int, token: str) -> None:
        rank = self.ranks[number]
        if rank.number is None:
            rank.token = token
            self._begin(number)

    def give_up(self, number: int) -> None:
        rank = self.ranks[number]
        if rank.number is not None:
            rank.attempts.withdraw("save", rank.number)
            self._send(number, (rank.number, -1, ""))
            rank.number = None

    def deliver(self, source: int, target: int) -> None:
        if not self.links[source, target]:
            return
        attempt, stage, token = self.links[source, target].popleft()
        rank = self.ranks[target]
        if stage < 0:
            rank.attempts.withdraw("save", attempt)
        else:
            rank.came[attempt, stage][source] = token
        self._go_on(target)

    def settle(self) -> None:
        """Deliver everything."""
        while any(self.links.values()):
            for source, target in self.links:
                self.deliver(source, target)

    def _begin(self, number: int) -> None:
        rank = self.ranks[number]
        rank.number, rank.stage = rank.attempts.begin("save"), 0
        self._send(number, (rank.number, 0, rank.token))
        self._go_on(number)

    def _go_on(self, number: int) -> None:
        rank = self.ranks[number]
        while rank.number is not None and self._complete(rank):
            if rank.stage == STAGES - 1:
                self.done[number] = {**rank.came[rank.number, rank.stage], number: rank.token}
                rank.number = None
                return
            rank.stage += 1
            self._send(number, (rank.number, rank.stage, rank.token))
        if rank.number is not None and rank.attempts.is_withdrawn("save", rank.number):
            self._begin(number)

    def _complete(self, rank: Rank) -> bool:
        return len(rank.came[rank.number, rank.stage]) == len(self.ranks) - 1

    def _send(self, number: int, message: tuple[int, int, str]) -> None:
        for target in range(len(self.ranks)):
            if target != number:
                self.links[number, target].append(message)


@settings(max_examples=150)
@given(data=st.data(), size=st.integers(2, 4))
def test_after_any_calls_that_fail_the_next_one_of_all_works(
    data: st.DataObject, size: int
) -> None:
    world, rank = World(size), st.integers(0, size - 1)
    events = st.tuples(st.sampled_from(["call", "give up", "deliver", "deliver"]), rank, rank)
    for number, (event, a, b) in enumerate(data.draw(st.lists(events, max_size=40))):
        if event == "call":
            world.call(a, f"call {number} of rank {a}")
        elif event == "give up":
            world.give_up(a)
        elif a != b:
            world.deliver(a, b)
    for number in range(size):
        world.give_up(number)
    late = data.draw(st.sets(rank))  # who comes before it has heard of everything
    world.done.clear()
    for number in late:
        world.call(number, f"last of {number}")
    world.settle()
    for number in range(size):
        world.call(number, f"last of {number}")
        world.settle()
    whole = {rank: f"last of {rank}" for rank in range(size)}
    assert [world.done[rank] for rank in range(size)] == [whole] * size


def test_purposes_are_counted_apart() -> None:
    attempts = Attempts()
    assert [attempts.begin(purpose) for purpose in ("save", "load", "save")] == [1, 1, 2]
    attempts.withdraw("load", 7)
    assert attempts.is_withdrawn("load", 7)
    assert not attempts.is_withdrawn("save", 2)
    assert attempts.begin("load") == 8
