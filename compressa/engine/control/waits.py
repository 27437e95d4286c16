"""Waits: what each rank does and whom it waits for, and where a chain of waits ends.

That a rank waits for another does not mean that the other is to blame: it may wait in turn. Every
rank can say what it is doing; from all these records follows who holds up the rest. Rank 0 waits
for 2, 2 waits for 1, and 1 has not come: 1 is named. If a chain comes back to where it has been,
nobody outside of the cycle is to blame, and all of it is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

OUTSIDE = "outside of the library"

_MOST_WAITS = 8
_MOST_RANKS = 256
_MOST_CHARACTERS = 200
_MOST_CLAUSES = 6


@dataclass(frozen=True)
class Wait:
    """An operation that a rank has begun, and that others keep from ending.

    Attributes:
        operation: Its name, the same on all ranks that take part in it.
        what: What people call it.
        ranks: Who is waited for.
        seconds: For how long.
    """

    operation: str
    what: str
    ranks: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Activity:
    """What a rank is doing.

    Attributes:
        doing: What people call it.
        seconds: Since when.
        blocked: Whether it does nothing else before one of its waits ends.
        waits: What it waits for, the longest wait first.
    """

    doing: str
    seconds: float
    blocked: bool
    waits: tuple[Wait, ...] = ()

    def message(self) -> dict[str, Any]:
        """Return it as JSON of bounded length: 8 waits at most, 256 ranks of each."""
        waits = [
            asdict(wait)
            | {"what": wait.what[:_MOST_CHARACTERS], "ranks": list(wait.ranks[:_MOST_RANKS])}
            for wait in self.waits[:_MOST_WAITS]
        ]
        return asdict(self) | {"doing": self.doing[:_MOST_CHARACTERS], "waits": waits}

    @staticmethod
    def of(message: Mapping[str, Any], size: int) -> Activity:
        """Read what `message` returned, on another rank.

        Args:
            message: From outside.
            size: Number of ranks.

        Raises:
            ValueError: It is none, or names ranks that there are not.
        """
        try:
            waits = tuple(
                Wait(
                    str(wait["operation"]),
                    str(wait["what"]),
                    tuple(map(int, wait["ranks"])),
                    float(wait["seconds"]),
                )
                for wait in message["waits"]
            )
            activity = Activity(
                str(message["doing"]), float(message["seconds"]), bool(message["blocked"]), waits
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no activity: {error}") from error
        if any(not 0 <= rank < size for wait in waits for rank in wait.ranks):
            raise ValueError("an activity names ranks that there are not")
        return activity

    def held_up_in(self, operation: str) -> tuple[Wait, ...]:
        """Return what keeps this rank from giving others what they wait for in an operation.

        That is its waits in the operation, if it has begun it; else, if it is blocked, all of its
        waits.
        """
        same = tuple(wait for wait in self.waits if wait.operation == operation and wait.ranks)
        if same or not self.blocked:
            return same
        return tuple(wait for wait in self.waits if wait.ranks)


class Doing:
    """The record of what a rank is doing; written by one thread, read by any.

    Args:
        what: What it is doing first.
        waits: Returns what it waits for, the longest wait first; from any thread.
    """

    def __init__(self, what: str, waits: Callable[[], Sequence[Wait]] = list) -> None:
        self._now = what, time.monotonic(), False
        self._waits = waits

    def begin(self, what: str, *, blocked: bool = False) -> None:
        """Note what it is doing from now on.

        Args:
            what: What people call it.
            blocked: Whether it does nothing else until it begins the next.
        """
        self._now = what, time.monotonic(), blocked

    def activity(self) -> Activity:
        """Return what it is doing, since when, and what it waits for; from any thread."""
        what, since_s, blocked = self._now
        return Activity(what, time.monotonic() - since_s, blocked, tuple(self._waits()))


class Cause(NamedTuple):
    """Who holds up a rank.

    Attributes:
        ranks: Where the chains of waits end; or all ranks of a cycle.
        cyclic: Whether they end nowhere.
        stuck: Whether they come back to the rank in a way that cannot end by itself: it waits for
            one that has not begun this, and that waits for what the rank has not begun.
        text: What the ranks along the chains are doing, for people.
    """

    ranks: tuple[int, ...]
    cyclic: bool
    stuck: bool
    text: str


def cause_of(activities: Mapping[int, Activity], rank: int, wait: Wait) -> Cause:
    """Follow the chains of waits to their end.

    Args:
        activities: By rank; who has not answered is missing, and ends a chain.
        rank: Where to begin.
        wait: Which of its waits.
    """
    reached, links = _follow(activities, rank, wait)
    after: dict[int, set[int]] = {}
    for link in links:
        after.setdefault(link.rank, set()).add(link.peer)
    cyclic = [each for each in after if each in _reached(after, each)]
    ends = [each for each, waits in reached.items() if not waits]
    stuck = _is_stuck(activities, links, after, rank, wait)
    own = [each for each in cyclic if rank in _reached(after, each)]
    named = tuple(sorted(own if stuck else ends or cyclic))
    return Cause(named, not ends, stuck, _told(activities, reached, rank, named))


class _Link(NamedTuple):
    """That a rank waits for another."""

    rank: int
    wait: Wait
    peer: int


def _follow(
    activities: Mapping[int, Activity], rank: int, wait: Wait
) -> tuple[dict[int, list[Wait]], list[_Link]]:
    """Return what each rank along the way waits for, and all links."""
    reached: dict[int, list[Wait]] = {rank: [wait]}
    links, queue = [], [(rank, wait)]
    while queue:
        waiting, through = queue.pop(0)
        for peer in through.ranks:
            links.append(_Link(waiting, through, peer))
            known = reached.setdefault(peer, [])
            if peer in activities:
                held_up = activities[peer].held_up_in(through.operation)
                new = [each for each in held_up if each not in known]
                known += new
                queue += [(peer, each) for each in new]
    return reached, links


def _is_stuck(
    activities: Mapping[int, Activity],
    links: Sequence[_Link],
    after: Mapping[int, set[int]],
    rank: int,
    wait: Wait,
) -> bool:
    """Whether a rank waits for one that will not come before this rank comes elsewhere."""
    firsts = [peer for peer in wait.ranks if not _takes_part(activities, peer, wait.operation)]
    lasts = {
        link.rank
        for link in links
        if link.peer == rank and not _takes_part(activities, rank, link.wait.operation)
    }
    return any(lasts & ({first} | _reached(after, first)) for first in firsts)


def _takes_part(activities: Mapping[int, Activity], rank: int, operation: str) -> bool:
    waits = activities[rank].waits if rank in activities else ()
    return any(wait.operation == operation for wait in waits)


def _reached(after: Mapping[int, set[int]], rank: int) -> set[int]:
    found, queue = set[int](), [rank]
    while queue:
        new = after.get(queue.pop(), set()) - found
        found |= new
        queue += new
    return found


def _told(
    activities: Mapping[int, Activity],
    reached: Mapping[int, Sequence[Wait]],
    first: int,
    named: Sequence[int],
) -> str:
    """Say of each rank along the way what it does; of those that are named in any case."""
    others = [rank for rank in reached if rank != first and rank not in named]
    shown = [*named, *others][:_MOST_CLAUSES]
    clauses = [_clause(r, activities.get(r), waits) for r, waits in reached.items() if r in shown]
    more = len(reached) - len(clauses)
    return "; ".join(clauses) + (f"; and {more} more ranks" if more > 1 else "")


def _clause(rank: int, activity: Activity | None, waits: Sequence[Wait]) -> str:
    if activity is None and not waits:
        return f"rank {rank} does not answer"
    where = f"rank {rank} is {activity.doing}" if activity is not None else f"rank {rank}"
    if not waits:
        assert activity is not None
        return f"{where}, since {activity.seconds:.1f} s, and waits for nobody"
    ranks = sorted({peer for wait in waits for peer in wait.ranks})
    return f"{where} and waits for {names(ranks)} in {waits[0].what}"


def names(ranks: Sequence[int]) -> str:
    """Name ranks, for people: "rank 2", or "ranks 0, 2" with "..." behind the sixth."""
    shown = ", ".join(map(str, ranks[:_MOST_CLAUSES])) + (", ..." * (len(ranks) > _MOST_CLAUSES))
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
