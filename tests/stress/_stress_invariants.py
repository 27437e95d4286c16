"""What must hold while faults of a schedule happen, whatever they are; see `stress`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from _stress_schedules import DATA, LASTING, LONE, STEPS, Fault, Schedule

CLOSE_S = 6.0  # the handle's own patience, and a second
MOST_ERROR = 4e-6  # of float32
_ERRORS = {"PeerLost", "Timeout", "PayloadError"}

Seen = dict[str, Any]
Answers = Mapping[int, Seen]


class InvariantError(AssertionError):
    """Something does not hold that must.

    Args:
        what: "verdict", "time", "replicas", "mass", "calls" or "left".
        why: What was seen.
    """

    def __init__(self, what: str, why: object) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what


def check(holds: object, what: str, why: object) -> None:
    """Raise InvariantError unless it holds."""
    if not holds:
        raise InvariantError(what, why)


class Invariants:
    """Holds what ranks have seen against what has happened to them.

    Args:
        schedule: What happens.
        folder: Has a file for each fault that has happened, by number.
        deadline_s: The exchanges' deadline.
        slack_s: How much later every survivor must know.

    Attributes:
        slowest_s: After how many seconds the last survivor knew of a fault.
    """

    def __init__(self, schedule: Schedule, folder: Path, deadline_s: float, slack_s: float) -> None:
        self.slowest_s = 0.0
        self._schedule, self._folder = schedule, folder
        self._most_s, self._slack_s = deadline_s + slack_s, slack_s
        self._judged: set[Fault] = set()

    # What has happened

    @property
    def lost(self) -> set[int]:
        """Who is killed, or away for longer than others wait."""
        return _ranks(self._happened, LASTING)

    @property
    def killed(self) -> set[int]:
        """Who never says anything again."""
        return _ranks(self._happened, ("kill",))

    @property
    def cut_off(self) -> set[int]:
        """Who may go on waiting in torch, which nothing can end: its link is down."""
        return _ranks(self._happened, ("link",))

    @property
    def _happened(self) -> list[Fault]:
        return [fault for fault in self._schedule.faults if self._mark(fault).exists()]

    def _mark(self, fault: Fault) -> Path:
        return self._folder / str(self._schedule.faults.index(fault))

    def _time_s(self, fault: Fault) -> float:
        return self._mark(fault).stat().st_mtime

    # What must hold then

    def failed(self, answers: Answers, *, alike: bool) -> None:
        """Check errors of survivors by the faults that nobody has been told of yet.

        Args:
            answers: Of survivors.
            alike: Whether all must raise the same error, as they do in a step. Of a start or a
                new one, some may hear at their next call only.
        """
        fresh = [f for f in self._happened if f.ends_the_step and f not in self._judged]
        check(fresh, "verdict", f"without a fault: {answers}")
        self._judged |= set(fresh)
        verdicts = {(seen["type"], *seen["ranks"]) for seen in answers.values()}
        check(len(verdicts) == 1 or not alike, "verdict", answers)
        struck_s = min(map(self._time_s, fresh))
        told_s = [seen["at_s"] for seen in answers.values() if seen["type"]]
        self.slowest_s = max(self.slowest_s, max(told_s) - struck_s)
        check(self.slowest_s <= self._most_s, "time", f"{self.slowest_s:.2f} s: {answers}")
        for rank, seen in answers.items():
            if seen["type"]:
                self.blamed(rank, seen)

    def blamed(self, rank: int, seen: Seen) -> None:
        """Only who has a fault is named by a rank, and somebody is."""
        check(seen["type"] in _ERRORS, "verdict", seen)
        if seen["type"] == "PayloadError":
            self._check_senders(set(seen["senders"]), seen)
            return
        check(seen["ranks"], "verdict", seen)
        # At the start, who has come is known from the store alone, which rank 0 keeps.
        blind = {0, rank} & self.cut_off or {0} & self.killed
        known = set(seen["ranks"]) <= self.lost
        check(known or (self._schedule.starts and blind), "verdict", (self.lost, seen))

    def _check_senders(self, senders: set[int], seen: Seen) -> None:
        """Whose frames are not what they should be is named.

        A payload that its sender has made too short may be found out where it is decoded.
        """
        struck = _ranks(self._happened, DATA)
        check(senders or _ranks(self._happened, ("size",)), "verdict", seen)
        check(senders <= struck and struck, "verdict", (struck, seen))

    def trained(self, answers: Answers) -> None:
        """After each step that several ranks have finished, their parameters are the same."""
        for step in range(STEPS):
            digests = {seen["digests"].get(str(step)) for seen in answers.values()} - {None}
            check(len(digests) <= 1, "replicas", f"step {step}: {answers}")

    def finished(self, answers: Answers) -> None:
        """Check what survivors have come to, when all steps are done."""
        check(len({seen["parameters"] for seen in answers.values()}) == 1, "replicas", answers)
        for seen in answers.values():
            check(max(seen["errors"]) < MOST_ERROR, "mass", seen)
            check(seen["steps"] == STEPS, "calls", seen)
        self._check_calls([call for seen in answers.values() for call in seen["calls"]])
        untold = [f for f in self._happened if f.ends_the_step and f not in self._judged]
        check(not untold, "verdict", f"nobody was told: {untold}")
        if len(answers) > 1:
            self._check_happened(answers, lambda fault: fault.moment not in ("reform", "close"))

    def closed(self, rank: int, seen: Seen) -> None:
        """Nothing is left of a handle that was closed in time."""
        where = f"rank {rank}: {seen}"
        check(not seen["left"] or rank in self.cut_off, "left", where)
        check(seen["closing_s"] < CLOSE_S + self._slack_s, "time", where)

    def ended(self, ranks: Iterable[int]) -> None:
        """What should happen to these ranks when they closed, has."""
        self._check_happened(ranks, lambda fault: fault.moment == "close")

    def _check_happened(self, ranks: Iterable[int], due: Callable[[Fault], bool]) -> None:
        """What happened to nobody proves nothing."""
        missed = set(self._schedule.faults) - set(self._happened)
        wrong = [fault for fault in missed if fault.rank in ranks and due(fault)]
        check(not wrong, "calls", f"did not happen: {wrong}")

    def _check_calls(self, calls: Iterable[Seen]) -> None:
        """What was called alone fails, in time; what a part calls works, if nothing ended it."""
        parts: dict[int, set[str]] = {}
        for call in calls:
            check(call["seconds"] <= self._most_s, "time", call)
            told = any(f.ends_the_step and self._time_s(f) < call["at_s"] for f in self._happened)
            alone = call["kind"] in LONE
            allowed = {"Timeout"} if alone else {""}
            check(call["type"] in (allowed | _ERRORS if told else allowed), "calls", call)
            check(told or not alone or call["kind"] in call["message"], "calls", call)
            parts.setdefault(call["fault"], set()).add(call["parameters"])
        check(all(len(found - {""}) <= 1 for found in parts.values()), "replicas", parts)


def _ranks(faults: Iterable[Fault], kinds: Iterable[str]) -> set[int]:
    return {fault.rank for fault in faults if fault.kind in kinds}
