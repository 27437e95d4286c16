"""Inline: a driver on the threads that give it programs, one at a time, in place of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from compressa.engine.device_stream import DeviceStream


class Inline:
    """Calls functions on the caller's thread, those that they ask for meanwhile after them.

    Args:
        device_stream: Its main stream is the current one meanwhile.
    """

    def __init__(self, device_stream: DeviceStream) -> None:
        self._device_stream = device_stream
        self._lock = threading.RLock()
        self._calls: deque[Callable[[], None]] = deque()
        self._under_way = False

    def run(self, call: Callable[[], None]) -> None:
        """Call a function, and what is asked for meanwhile; or have whoever is at it call it.

        What it raises ends the rest.
        """
        with self._lock:
            self._calls.append(call)
            if self._under_way:
                return
            self._under_way = True
            try:
                with self._device_stream.current():
                    while self._calls:
                        self._calls.popleft()()
            finally:
                self._calls.clear()
                self._under_way = False

    def alone(self) -> AbstractContextManager[object]:
        """Return a context in which nothing else is called; others wait for its end."""
        return self._lock
