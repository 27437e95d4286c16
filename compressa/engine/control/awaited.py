"""Awaited: small messages that are under way over the control channel, and the wait for them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from compressa.engine.control.waits import Wait
from compressa.errors import CompressaError, Timeout
from compressa.transports.base import Key, Received

LOOK_S = 0.05
AHEAD_S = 1.0  # of a deadline, all tell each other what they are doing
_BRIEF_S = 1.0  # a busy machine has a thread wait for so long


class Caller(Protocol):
    """Who waits; see `Control`."""

    def look(self, what: str) -> None:
        """Raise the first failure of the session, if there is one, saying what was waited for."""

    def ask(self) -> float:
        """Ask all others what they are doing; return the time, of `time.monotonic`; no waiting."""

    def explained(self, awaited: Awaited, deadline_s: float, since_s: float) -> Timeout:
        """Return why a call has taken longer than its deadline; see `Control.explained`."""

    def withdraw(self, awaited: Awaited, *, told: bool) -> None:
        """Wait no longer for a call; see `Control.withdraw`."""


class Awaited:
    """Small messages that are under way.

    Args:
        caller: Waits for them.
        key: Their name.
        purpose: What they are for.

    Attributes:
        waited_since_s: Since when `wait` is called, of `time.monotonic`; None before.
        stuck: What `wait` is to raise, where it would never end; None else.
    """

    def __init__(self, caller: Caller, key: Key, purpose: str) -> None:
        self.key = key
        self.purpose = purpose
        self.waited_since_s: float | None = None
        self.stuck: Timeout | None = None
        self._caller = caller
        self._answer: list[Received | CompressaError] = []
        self._finished = threading.Event()

    @property
    def operation(self) -> str:
        """Their name, the same on all ranks: the purpose and the number of the attempt."""
        return f"{self.purpose}#{self.key.step}"

    def description(self, ranks: Sequence[int]) -> Wait:
        """Describe the wait for some ranks; 0 seconds long if nobody waits yet. From any thread."""
        since_s = self.waited_since_s
        seconds = 0.0 if since_s is None else time.monotonic() - since_s
        return Wait(self.operation, self.purpose, tuple(ranks), seconds)

    def done(self, result: Received | CompressaError) -> None:
        """Take what came, or the error; to be called once, from any thread."""
        self._answer.append(result)
        self._finished.set()

    def wait(
        self,
        deadline_s: float,
        over: Callable[[], bool] = lambda: False,
        told_s: float | None = None,
    ) -> Received:
        """Return what came, when all is here: by rank, uint8 of as many bytes as were sent.

        Time in which this process did not run does not count.

        Args:
            deadline_s: Longest wait, in seconds.
            over: Whether another rank has withdrawn its call.
            told_s: The deadline that an error tells, if not this one.

        Raises:
            Timeout: Some rank has sent nothing in time.
            PeerLost: Some rank is gone.
            CompressaError: The session has failed meanwhile.
            Withdrawn: `over` says so.
        """
        self.waited_since_s = looked_s = time.monotonic()
        left_s, asked_s = deadline_s, -math.inf
        try:
            while not self._finished.wait(LOOK_S):
                self._caller.look(self.purpose)
                now_s = time.monotonic()
                left_s -= min(now_s - looked_s, _BRIEF_S)  # what came while it was away is unread
                looked_s = now_s
                if over():
                    raise Withdrawn
                if self.stuck is not None:
                    raise self.stuck
                if left_s < AHEAD_S and asked_s < 0:
                    asked_s = self._caller.ask()
                if left_s < 0:
                    raise self._caller.explained(self, told_s or deadline_s, asked_s)
        except BaseException as error:
            self._caller.withdraw(self, told=isinstance(error, Withdrawn))
            raise
        if isinstance(self._answer[0], CompressaError):
            raise self._answer[0]
        return self._answer[0]


class Withdrawn(Exception):  # noqa: N818 - no error: a call goes on with the next attempt
    """Another rank's call for the same purpose has failed."""
