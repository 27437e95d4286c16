"""Inquest: from what the ranks complain of to one verdict, which all of them raise.

A rank that fails by the network complains to all others, and each of them answers to all what it
is doing, and its own complaint if it has one. One rank decides, as soon as everybody that it can
reach has answered: the lowest. If it does not, the next one does a moment later. A verdict is
passed on by whoever hears it.

Sans I/O: `Control` has the messages and the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compressa.engine.control.waits import Activity, Cause, cause_of
from compressa.errors import CompressaError, PayloadError, PeerLost, Timeout, TransportError

_MOST_CHARACTERS = 1500
# Only what is listed here is ever made of what another rank sends.
_MADE: dict[str, Callable[[str, tuple[int, ...]], CompressaError]] = {
    "PeerLost": lambda text, ranks: PeerLost(ranks[0], text),
    "Timeout": lambda text, ranks: Timeout(ranks, text),
    "PayloadError": lambda text, ranks: PayloadError(text),
    "TransportError": lambda text, ranks: TransportError(text),
}


@dataclass(frozen=True)
class Complaint:
    """A failure of the network, as one rank sees it.

    Attributes:
        error: What it has noticed.
        explained: Whether the chain of waits has been followed already.
    """

    error: CompressaError
    explained: bool = False


@dataclass
class Inquest:
    """What one rank has heard of a failure.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        complaints: By rank.
        activities: By rank that has answered.
    """

    rank: int
    size: int
    complaints: dict[int, Complaint] = field(default_factory=dict)
    activities: dict[int, Activity] = field(default_factory=dict)

    def hear(self, rank: int, activity: Activity, complaint: Complaint | None) -> None:
        """Take what a rank says: its latest activity, and the first complaint that it has made.

        Args:
            rank: Who says it; may be this rank.
            activity: What it is doing.
            complaint: What it has noticed; None where it only answers.
        """
        self.activities[rank] = activity
        if complaint is not None:
            self.complaints.setdefault(rank, complaint)

    def ranks_before(self, unreachable: Collection[int]) -> int:
        """Return how many ranks decide before this one: the lower ones that can be reached."""
        return sum(rank not in unreachable for rank in range(self.rank))

    def complete(self, unreachable: Collection[int]) -> bool:
        """Return whether all that can be reached have answered, and a complaint names a rank."""
        return not set(self.silent) - set(unreachable) and not self.nameless

    @property
    def silent(self) -> list[int]:
        """Who has not answered, in ascending order."""
        return [rank for rank in range(self.size) if rank not in self.activities]

    @property
    def nameless(self) -> bool:
        """Whether no complaint names a rank: somebody else may know more in a moment."""
        errors = [complaint.error for complaint in self.complaints.values()]
        return not any(isinstance(error, PeerLost | Timeout) for error in errors)

    def verdict(
        self, alive: Collection[int] = (), before: Mapping[int, Activity] | None = None
    ) -> CompressaError:
        """Decide by what is known; there must be a complaint.

        A loss counts before a wait, and both before a failure without a name.

        Args:
            alive: Who has given a sign of life just now, and so is not lost if it has not answered.
            before: What ranks have said of themselves a moment ago.

        Returns:
            A `PeerLost`, a `Timeout`, or, where all have answered and nobody is named, a
            `TransportError`.
        """
        lost = [c.error for c in self.complaints.values() if isinstance(c.error, PeerLost)]
        if lost:
            return self._loss(lost)
        for rank, complaint in sorted(self.complaints.items()):
            if isinstance(complaint.error, Timeout):
                slow = {peer: self._slow(rank) for peer in self.silent if peer in alive}
                known = {**slow, **(before or {}), **self.activities}
                return self._timeout(rank, complaint, known)
        rank = min(self.complaints)
        text = f"rank {rank}: {self.complaints[rank].error}"
        if self.silent:
            gone = self.silent[0]
            return PeerLost(gone, f"rank {gone} is lost: it does not answer; {text}")
        return TransportError(text)

    def _loss(self, lost: list[PeerLost]) -> PeerLost:
        """Who is accused and does not answer; else, by most; else, the lowest."""
        accusers = Counter(error.rank for error in lost)
        culprit = max(accusers, key=lambda r: (r not in self.activities, accusers[r], -r))
        return next(error for error in lost if error.rank == culprit)

    def _timeout(
        self, rank: int, complaint: Complaint, known: Mapping[int, Activity]
    ) -> CompressaError:
        error = complaint.error
        assert isinstance(error, Timeout)
        cause = None if complaint.explained else cause_of_timeout(error, known, rank)
        return error if cause is None else Timeout(cause.ranks, f"{error}; {cause.text}")

    def _slow(self, rank: int) -> Activity:
        """Where even an answer takes so long, what a rank waits for may be under way."""
        waits = (replace(wait, ranks=(rank,)) for wait in self.activities[rank].waits)
        return Activity("alive, and its answer is under way", 0.0, True, tuple(waits))


def cause_of_timeout(error: Timeout, activities: Mapping[int, Activity], rank: int) -> Cause | None:
    """Return who holds up a rank, which need not be whom it waits for; None if it does not wait.

    Args:
        error: That the rank has waited for too long.
        activities: By rank that has answered.
        rank: Which has waited.
    """
    due = set(error.ranks)
    waits = [w for w in activities[rank].waits if not due or due & set(w.ranks)]
    longest = max(waits, key=lambda wait: wait.seconds, default=None)
    return None if longest is None else cause_of(activities, rank, longest)


def told(error: CompressaError, rank: int) -> dict[str, Any]:
    """Return an error as JSON for the other ranks; see `heard`.

    What is not of the network, or of bytes that changed, becomes the loss of this rank.

    Args:
        error: Of the network, or the reason for which this rank gives up.
        rank: This rank.
    """
    own = not isinstance(error, TransportError | PayloadError)  # who was sent it is not to blame
    text = f"rank {rank} gave up: {error}" if own else str(error)
    kind = type(error).__name__ if type(error).__name__ in _MADE else "PeerLost"
    ranks = [error.rank] if isinstance(error, PeerLost) else list(getattr(error, "ranks", [rank]))
    return {"error": kind, "text": text[:_MOST_CHARACTERS], "ranks": ranks}


def heard(message: Mapping[str, Any], size: int) -> CompressaError:
    """Return the error that another rank has `told`.

    Args:
        message: From outside.
        size: Number of ranks.

    Raises:
        ValueError: It is none, or names ranks that there are not.
    """
    try:
        kind, text = str(message["error"]), str(message["text"])
        ranks = tuple(map(int, message["ranks"]))
        if not set(ranks) <= set(range(size)) or (kind == "PeerLost" and len(ranks) != 1):
            raise ValueError(f"a {kind} of ranks {ranks}")
        return _MADE[kind](text, ranks)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no error: {error}") from error
