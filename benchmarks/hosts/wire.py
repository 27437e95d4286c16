"""A rank's end of its line to the driver. Needs no more than the standard library.

A Unix socket lives in the file system, so it joins processes in different network namespaces and
puts no byte on the interfaces whose counters are read. Whatever a library prints cannot be taken
for an answer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
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

    def serve(self, version: str, answer: Callable[[Any], Mapping[str, Any] | None]) -> None:
        """Answer until the driver closes the line, which it also does when it dies.

        Args:
            version: Of the library that is measured.
            answer: Does what a message asks for, and returns numbers by name, or lists of them, or
                nothing; what it raises is told, and ends this rank.
        """
        self._say(kind="hello", version=version)
        with self._socket.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                try:
                    told = answer(json.loads(line))
                except Exception as error:
                    self._say(kind="failed", error=f"{type(error).__name__}: {error}")
                    raise
                self._say(kind="answer", told=told or {})

    def _say(self, **fields: Any) -> None:
        self._socket.sendall(json.dumps({"rank": self._rank, **fields}).encode() + b"\n")
