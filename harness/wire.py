"""A rank's end of its line to the driver. Needs no more than the standard library.

A Unix socket lives in the file system, so it joins processes in different network namespaces and
puts no byte on the interfaces whose counters are read. Whatever a library prints cannot be taken
for an answer.
"""

from __future__ import annotations

import json
import socket
from typing import Any


class Wire:
    """Lines of JSON to the driver and from it.

    Args:
        path: The driver's socket.
        rank: This rank.
    """

    def __init__(self, path: str, rank: int) -> None:
        self._rank = rank
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def serve(self, version: str, served: object) -> None:
        """Answer until the driver closes the line, which it also does when it dies.

        Args:
            version: Of the library that is measured.
            served: Has a method for each thing that the driver may ask for, which returns what JSON
                can hold, by name, or nothing; what it raises is told, and ends this rank.
        """
        self._say("hello", version=version)
        while line := self._lines.readline():
            what, given = json.loads(line)
            try:
                told = getattr(served, what)(**given)
            except Exception as error:
                self._say("failed", error=f"{type(error).__name__}: {error}")
                raise
            self._say("answer", told=told or {})

    def note(self, **told: Any) -> None:
        """Tell the driver something before the answer."""
        self._say("note", told=told)

    def wait(self) -> None:
        """Wait, in the midst of what was asked for, until the driver says something.

        Raises:
            ConnectionError: It has closed the line.
        """
        if not self._lines.readline():
            raise ConnectionError("the driver has closed the line")

    def _say(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"rank": self._rank, "kind": kind, **fields})
        self._socket.sendall(line.encode() + b"\n")
