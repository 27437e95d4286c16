"""A rank's end of its line to the driver. Needs no more than the standard library.

A Unix socket lives in the file system, so it joins processes in different network namespaces and
puts no byte on the interfaces whose counters are read. Whatever a library prints cannot be taken
for an answer. What goes over it is pickled: both ends are ours, and its folder is the user's own.
"""

from __future__ import annotations

from multiprocessing.connection import Client
from typing import Any


class Wire:
    """The line.

    Args:
        path: The driver's socket.
        rank: This rank.

    Raises:
        OSError: No driver listens there.
    """

    def __init__(self, path: str, rank: int) -> None:
        self._rank = rank
        self._line = Client(path, "AF_UNIX")

    def serve(self, version: str, served: object) -> None:
        """Answer until the driver closes the line, which it also does when it dies.

        Args:
            version: Of the library that is measured.
            served: Has a method for each thing that the driver may ask for; what it returns is the
                answer, and what it raises is told, and ends this rank.
        """
        self._say("hello", version)
        while (asked := self._heard()) is not None:
            what, given = asked
            try:
                told = getattr(served, what)(**given)
            except Exception as error:
                self._say("failed", f"{type(error).__name__}: {error}")
                raise
            self._say("answer", told)

    def note(self, **told: Any) -> None:
        """Tell the driver something before the answer."""
        self._say("note", told)

    def wait(self) -> None:
        """Wait, in the midst of what was asked for, until the driver says something.

        Raises:
            ConnectionError: It has closed the line.
        """
        if self._heard() is None:
            raise ConnectionError("the driver has closed the line")

    def _heard(self) -> tuple[str, dict[str, Any]] | None:
        """Wait for what the driver says; None if it has closed the line."""
        try:
            asked: tuple[str, dict[str, Any]] = self._line.recv()
        except (EOFError, ConnectionError):
            return None
        return asked

    def _say(self, kind: str, told: Any) -> None:
        self._line.send((self._rank, kind, told))
