"""Operation: what a rank does once or many times, together with all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compressa.collectives.base import Program
from compressa.engine.session import Session
from compressa.link.chain import Ask, Timed, timed


def nothing() -> None:
    """There is nothing to do."""


@dataclass(frozen=True)
class Operation:
    """What is done on one size, on one rank.

    Attributes:
        call: Does it once.
        verify: To be called after the first time; raises if the result is wrong.
        close: Lets go of what it holds; to be called after the last time.
    """

    call: Callable[[], object]
    verify: Callable[[], object]
    close: Callable[[], object] = nothing

    def timed(self, ask: Ask, session: Session) -> Timed:
        """Do it as often as is asked for, and close it; all ranks must."""
        found = timed(
            self.call,
            self.verify,
            session.barrier,
            session.slowest,
            ask.budget_s,
            ask.rounds,
        )
        self.close()
        return found


def repeated(session: Session, program: Callable[[], Program[None]]) -> Callable[[], object]:
    """Return what runs a program each time that it is called."""
    session.follow([], [])
    return lambda: session.run(program())
