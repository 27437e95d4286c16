"""Team: the ranks that carry out a collective together, and the place of this one among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Team:
    """Some ranks, in an order that all of them share.

    Attributes:
        ranks: Their numbers.
        place: Place of this rank in `ranks`.
    """

    ranks: Sequence[int]
    place: int

    @classmethod
    def everyone(cls, rank: int, size: int) -> Team:
        """All ranks, in order."""
        return cls(range(size), rank)

    @cached_property
    def size(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def at(self, place: int) -> int:
        """Return the rank at a place; places go round."""
        return self.ranks[place % len(self.ranks)]

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The other places, the next one first."""
        return tuple((self.place + shift) % self.size for shift in range(1, self.size))

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The ranks at the places before this one, in order."""
        return tuple(self.ranks[: self.place])

    @cached_property
    def after(self) -> tuple[int, ...]:
        """The ranks at the places after this one, in order."""
        return tuple(self.ranks[self.place + 1 :])
