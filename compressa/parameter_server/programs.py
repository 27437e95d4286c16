"""Programs: what one rank has under way, and the first failure, which ends all of it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import torch

from compressa.collectives.base import Exchange, Program
from compressa.engine.measuring.profiler import Ledger
from compressa.engine.session import Session
from compressa.errors import CompressaError


class Programs:
    """Starts programs, and promises that are kept by other means.

    Code of programs runs one at a time, on the thread of the driver. Whatever fails there, fails
    everything.

    Args:
        session: Carries them out.

    Attributes:
        session: As given.
        rank: Of the session.
        error: The first failure.
        ledger: Adds up what is measured.
    """

    def __init__(self, session: Session) -> None:
        self.rank = session.rank
        self.error: CompressaError | None = None
        self.session = session
        self.ledger = Ledger()
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

        Returns:
            A future, done at its end; its CompressaError is the first failure, unless there is one.
        """
        future = self.session.start(program, step=step, unit=unit, name=name)
        future.add_done_callback(self._note)
        return future

    def send(
        self,
        rank: int,
        payload: torch.Tensor,
        name: str,
        *,
        unit: int,
        step: int = 0,
        capacity_bytes: int | None = None,
    ) -> Future[None]:
        """Begin to send one message.

        Args:
            rank: To whom.
            payload: uint8[length]; not to be changed until the future is done.
            name: What messages of errors call it.
            unit: With `step`, its name.
            step: As `unit`.
            capacity_bytes: The most that is expected there; as long as it is unless given.

        Returns:
            As `start`.
        """

        def program() -> Program[None]:
            most = {} if capacity_bytes is None else {rank: capacity_bytes}
            yield Exchange({rank: payload}, {}, capacity_bytes=most)

        return self.start(program(), name, step=step, unit=unit)

    def promise(self) -> Future[None]:
        """Return a future that `keep` completes, with None; or `fail`, with its error.

        If something has failed already, the future has failed with the same error.
        """
        promise: Future[None] = Future()
        with self._lock:
            error = self.error
            if error is None:
                self._promises.add(promise)
        if error is not None:
            promise.set_exception(error)
        return promise

    def keep(self, promise: Future[None]) -> None:
        """Complete a promise with None, on this thread; from any thread.

        Nothing happens if it has failed with all else (see `fail`), or was kept already.

        Args:
            promise: From `promise`.
        """
        with self._lock:
            kept = promise in self._promises
            self._promises.discard(promise)
        if kept:
            promise.set_result(None)

    def wait(self, future: Future[None]) -> None:
        """Wait for a future, for as long as the communication thread answers.

        Args:
            future: From `start`, `send` or `promise`.

        Raises:
            CompressaError: The first failure of this rank.
        """
        try:
            self.session.wait(future)
        except CompressaError as error:
            raise self.error or error from None

    def check(self) -> None:
        """Do nothing while all is well.

        Raises:
            CompressaError: The first failure, if there was one.
        """
        if self.error is not None:
            raise self.error

    def fail(self, error: CompressaError) -> None:
        """End everything under way, here and on the other ranks; only the first one counts.

        Args:
            error: What all futures and promises fail with, and what `check` and `wait` raise.
        """
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            broken, self._promises = self._promises, set()
        self.session.fail(error)
        for promise in broken:
            promise.set_exception(error)

    def _note(self, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, CompressaError):
            self.fail(error)
