"""Watcher: calls back when a GPU has reached an event, so that nobody else has to wait for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from compressa.transports.gpu_threads import work_on

Callback = Callable[[], None]


class Watcher:
    """A thread that waits for events in the order in which they were named.

    Args:
        post: Has a function called on the thread that the callbacks are for.
        device: The GPU; a thread that names none would wake up the first one.
    """

    def __init__(self, post: Callable[[Callback], None], device: torch.device) -> None:
        self._post = post
        self._device = device
        self._watched: queue.SimpleQueue[tuple[torch.cuda.Event, Callback | None] | None]
        self._watched = queue.SimpleQueue()
        # A GPU that never reaches its events must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="compressa-watch", daemon=True)
        self._thread.start()

    def when(self, event: torch.cuda.Event, callback: Callback | None) -> None:
        """Have a function called once an event is reached; from any thread, and never blocks.

        Args:
            event: Recorded already. Events are waited for one after the other.
            callback: Posted, if given; where the GPU has failed, one that raises its error is.
        """
        self._watched.put((event, callback))

    def close(self, timeout_s: float) -> None:
        """End the thread, after what it was asked for; without it, if that takes longer.

        Args:
            timeout_s: Longest wait.
        """
        self._watched.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        work_on(self._device)
        while (item := self._watched.get()) is not None:
            event, callback = item
            try:
                event.synchronize()
            except Exception as error:  # of any work on the GPU, which is told here first
                self._post(_raiser(error))
                return
            if callback is not None:
                self._post(callback)


def _raiser(error: Exception) -> Callback:
    def fail() -> None:
        raise error

    return fail
