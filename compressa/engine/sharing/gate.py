"""Gate: holds a step's exchanges back until its turn has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

Callback = Callable[[], None]


class Arbiter(Protocol):
    """Grants jobs their turns on a link; for the communication thread."""

    def ask(self, turn: int, come: Callback) -> None:
        """Have `come` called, once or more often, on the same thread, when a turn has come.

        Args:
            turn: Its number, which rises by one with each call.
            come: Called in bounded time in any case.
        """

    def over(self) -> None:
        """Note that the turn that was asked for last is over."""

    def close(self) -> None:
        """Free what is held."""


class Gate:
    """Holds a step's exchanges back until its turn has come; for the communication thread.

    Args:
        arbiter: Says when; closed with this object.
    """

    def __init__(self, arbiter: Arbiter) -> None:
        self._arbiter = arbiter
        self._turn = 0
        self._step: int | None = None  # that has asked for a turn
        self._open = False
        self._held: deque[Callback] = deque()

    def enter(self, step: int, begin: Callback) -> None:
        """Begin an exchange of a step now, or when its turn has come, in the order of the calls.

        Args:
            step: Another one than before asks for a turn of its own.
            begin: Called once; not after `close`.
        """
        if step != self._step:
            self._step, self._open = step, False
            self._turn += 1
            self._arbiter.ask(self._turn, partial(self._come, self._turn))
        if self._open and not self._held:
            begin()
        else:
            self._held.append(begin)

    def over(self) -> None:
        """Note that all of the step has been exchanged: its turn is over."""
        if self._step is not None:
            self._step = None
            self._arbiter.over()

    def close(self) -> None:
        """Let go of what is held, and leave the line."""
        self._held.clear()
        self._arbiter.close()

    def _come(self, turn: int) -> None:
        if turn == self._turn:
            self._open = True
            while self._held:
                self._held.popleft()()
