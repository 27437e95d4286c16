"""Requests: what MPI has under way for a transport, and what to do when it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Requests:
    """Requests of MPI, each with a callback; for one thread.

    Args:
        mpi: The module `mpi4py.MPI`.
    """

    def __init__(self, mpi: Any) -> None:
        self._test_some = mpi.Request.Testsome
        self._requests: list[Any] = []
        self._then: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, request: Any, then: Callable[[], None]) -> None:
        """Have `then` called by `poll` when a request is complete.

        Args:
            request: Of a call that does not block, such as `Issend`.
            then: It must keep alive the memory that the request uses.
        """
        self._requests.append(request)
        self._then.append(then)

    def poll(self) -> bool:
        """Call back for what is complete, in the order of `add`; never blocks.

        Returns:
            Whether anything was complete.

        Raises:
            mpi4py.MPI.Exception: MPI reports an error of one of them.
        """
        if not self._requests:
            return False
        indices = self._test_some(self._requests)
        if not indices:
            return False
        ready = set(indices)
        calls = [self._then[index] for index in sorted(ready)]
        left = [index for index in range(len(self._requests)) if index not in ready]
        self._requests = [self._requests[index] for index in left]
        self._then = [self._then[index] for index in left]
        for call in calls:
            call()
        return True
