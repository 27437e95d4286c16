"""RankGroup: the ranks that carry out a collective, and which of them this one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class RankGroup:
    """Some ranks, in an order that all of them share.

    Attributes:
        ranks: Their numbers.
        index: Where this rank is in `ranks`, as `torch.distributed.get_group_rank` counts.
    """

    ranks: Sequence[int]
    index: int

    @classmethod
    def everyone(cls, rank: int, size: int) -> RankGroup:
        """Return the group of all ranks, in order.

        Args:
            rank: This rank.
            size: Number of ranks.
        """
        return cls(range(size), rank)

    @cached_property
    def size(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def at(self, index: int) -> int:
        """Return the rank of a member by its index; indices go round."""
        return self.ranks[index % len(self.ranks)]

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The indices of the others, the next one first."""
        return tuple((self.index + shift) % self.size for shift in range(1, self.size))

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The ranks before this one, in order."""
        return tuple(self.ranks[: self.index])

    @cached_property
    def after(self) -> tuple[int, ...]:
        """The ranks after this one, in order."""
        return tuple(self.ranks[self.index + 1 :])
