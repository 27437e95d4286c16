"""Programs: what one rank has under way, and the first failure, which ends all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from compressa.collectives.base import Program
from compressa.errors import CompressaError
from compressa.schedulers import Transfer


class Runs(Protocol):
    """What carries programs out: a `Session`, or a stand-in for it on a virtual clock."""

    rank: int
    size: int

    def start(
        self, program: Program[None], *, step: int, unit: int = 0, name: str = ""
    ) -> Future[None]:
        """Begin a program."""

    def follow(self, transfers: Sequence[Transfer], ordered: Sequence[int]) -> None:
        """Say which exchanges are the most urgent."""

    def now_s(self) -> float:
        """Tell the time of `call_at`."""

    def call_at(self, time_s: float, event: Callable[[], None]) -> None:
        """Have a function called at a time, or soon after it."""

    def wait(self, future: Future[None]) -> None:
        """Wait for the end of a program."""

    def fail(self, error: CompressaError) -> None:
        """End everything under way, on all ranks."""

    def close(self) -> None:
        """End threads and connections."""


class Programs:
    """Starts programs, and promises that are kept by other means.

    Code of programs runs one at a time, on the thread of the driver. Whatever fails there, fails
    everything.

    Args:
        session: Carries them out.

    Attributes:
        rank: Of the session.
        error: The first failure.
    """

    def __init__(self, session: Runs) -> None:
        self.rank = session.rank
        self.error: CompressaError | None = None
        self._session = session
        self._promises: set[Future[None]] = set()
        self._lock = threading.Lock()

    def start(
        self, program: Program[None], name: str, *, step: int = 0, unit: int = 0
    ) -> Future[None]:
        """Begin a program.

        Args:
            program: All ranks that it exchanges with must begin its counterpart.
            name: What messages of errors call it.
            step: With `unit`, the name of its messages.
            unit: As `step`.
        """
        future = self._session.start(program, step=step, unit=unit, name=name)
        future.add_done_callback(self._note)
        return future

    def call(self, function: Callable[[], None], name: str) -> None:
        """Have a function called on the driver's thread, after what was begun before."""

        def program() -> Program[None]:
            function()
            yield from ()

        self.start(program(), name)

    def now_s(self) -> float:
        """Tell the time of `call_at`."""
        return self._session.now_s()

    def call_at(self, time_s: float, function: Callable[[], None]) -> None:
        """Have a function called on the driver's thread at a time, or soon after it."""
        self._session.call_at(time_s, function)

    def promise(self) -> Future[None]:
        """Return a future that somebody will complete; or the first failure."""
        promise: Future[None] = Future()
        with self._lock:
            error = self.error
            if error is None:
                self._promises.add(promise)
        if error is not None:
            promise.set_exception(error)
        return promise

    def keep(self, promise: Future[None]) -> None:
        """Complete a promise, unless it has failed."""
        with self._lock:
            kept = promise in self._promises
            self._promises.discard(promise)
        if kept:
            promise.set_result(None)

    def wait(self, future: Future[None]) -> None:
        """Wait for a future, for as long as the communication thread answers.

        Raises:
            CompressaError: The first failure of this rank.
        """
        try:
            self._session.wait(future)
        except CompressaError as error:
            raise self.error or error from None

    def check(self) -> None:
        """Raise the first failure, if there is one."""
        if self.error is not None:
            raise self.error

    def fail(self, error: CompressaError) -> None:
        """End everything under way, here and on the other ranks; only the first one counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            broken, self._promises = self._promises, set()
        self._session.fail(error)
        for promise in broken:
            promise.set_exception(error)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _note(self, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, CompressaError):
            self.fail(error)
