"""Long waits: what a rank says in the log of a wait that grows long, and which waits never end.

To wait for a rank that is alive and busy elsewhere is no fault. But after a while people want to
know for whom, and what it does there. And where each rank of a cycle waits in an operation that the
next has not begun, as where one alone saves a checkpoint, there is no use in waiting on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compressa.engine.control.waits import Activity, Cause, Wait, cause_of, names

_log = logging.getLogger(__name__)

LONG_S = 30.0
_ANSWERS_S = 1.0
_AGAIN_S = 5.0

Answers = Callable[[float], Mapping[int, Activity]]


@dataclass
class _Question:
    """What the others are doing while this rank waits."""

    wait: Wait
    ask_at_s: float
    before: Cause | None = None  # that was stuck when it was asked first
    asked_s: float | None = None


class LongWaits:
    """Looks at this rank's waits from time to time; without threads and clocks.

    Args:
        rank: This rank.
        ask: Asks the others what they are doing; returns the time.
        answers: Returns what has been answered since then, and what this rank is doing.
        stuck: Called with a wait that never ends, why, and what was answered.
        long_s: What is long; 30 s if not given.
    """

    def __init__(
        self,
        rank: int,
        ask: Callable[[], float],
        answers: Answers,
        stuck: Callable[[Wait, Cause, Mapping[int, Activity]], None],
        long_s: float | None = None,
    ) -> None:
        self._rank = rank
        self._ask, self._answers, self._stuck = ask, answers, stuck
        self._long_s = LONG_S if long_s is None else long_s
        self._noted: str | None = None
        self._question: _Question | None = None

    def look(self, now_s: float, activity: Activity) -> None:
        """Look at what this rank is doing; ask, or understand what was answered.

        To be called a few times a second. It logs a warning of each wait that grows long, once.

        Args:
            now_s: The time, of the same clock as `ask` returns.
            activity: What this rank is doing.
        """
        question = self._question or self._find(now_s, activity)
        if question is None:
            return
        self._question = question
        if question.wait.operation not in [wait.operation for wait in activity.waits]:
            self._question = None  # it has ended
        elif question.asked_s is None:
            if now_s >= question.ask_at_s:
                question.asked_s = self._ask()
        elif now_s > question.asked_s + _ANSWERS_S:
            self._question = self._understand(question, question.asked_s, now_s)

    def _find(self, now_s: float, activity: Activity) -> _Question | None:
        wait = max(activity.waits, key=lambda wait: wait.seconds, default=None)
        if wait is None or wait.seconds < self._long_s or _topic(wait) == self._noted:
            return None
        self._noted = _topic(wait)
        return _Question(wait, now_s)

    def _understand(self, question: _Question, asked_s: float, now_s: float) -> _Question | None:
        """Say why this rank waits; ask once more if it seems to be for ever."""
        wait, before, answers = question.wait, question.before, self._answers(asked_s)
        cause = cause_of(answers, self._rank, wait)
        if before is None:
            self._tell(wait, cause)
            return _Question(wait, now_s + _AGAIN_S, cause) if cause.stuck else None
        if cause.stuck and cause.ranks == before.ranks:
            self._stuck(wait, cause, answers)
        return None

    def _tell(self, wait: Wait, cause: Cause) -> None:
        whom = names(wait.ranks)
        text = "rank %d has waited for %s in %s for %.0f s: %s"
        _log.warning(text, self._rank, whom, wait.what, wait.seconds, cause.text)


def _topic(wait: Wait) -> str:
    """A step's units make one wait."""
    return wait.operation.split("/")[0]
