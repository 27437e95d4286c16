"""Arrivals: gradients of one parameter each, on their way, in the order in which they come."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from compressa.engine.device_stream import Ticket, reached

Settings = Mapping[str, Any]
"""A parameter group's hyper-parameters, without its parameters."""


@dataclass(eq=False, slots=True)
class Gradient:
    """A parameter's gradient of one step, from the moment in which it is submitted.

    Attributes:
        parameter: Of which.
        name: Its name.
        step: Of which optimizer step.
        values: What is averaged over the ranks, in place.
        combined: Done when `values` are the mean; on a GPU, when that is enqueued.
        before: What `parameter.grad` was, if no backward of this rank has reached the parameter.
        reached: Whether one has.
        settings: With which hyper-parameters its update is due; None while none is.
        over: Whether it was waited for and, if an update was due, that is done.
    """

    parameter: torch.nn.Parameter
    name: str
    step: int
    values: torch.Tensor
    combined: Ticket
    before: torch.Tensor | None = None
    reached: bool = True
    settings: Settings | None = None
    over: bool = False

    @property
    def come(self) -> bool:
        """Whether `values` are the mean now.

        Raises:
            CompressaError: They will never be.
        """
        return self.combined.done() and reached(self.combined.result())


class Arrivals:
    """A queue that the engine's threads fill, and the training thread empties.

    On a GPU, what is in it may still be on its way there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[int, Gradient] = {}
        self._numbers = itertools.count()
        self._come: deque[Gradient] = deque()
        self._seen: deque[Gradient] = deque()
        self._awaited: Ticket | None = None

    def expect(self, gradient: Gradient) -> None:
        """Have a gradient in the queue as soon as it is combined, or has failed."""
        number = next(self._numbers)
        self._expected[number] = gradient
        # A future keeps its callbacks for ever: one that held the gradient would be held by it.
        gradient.combined.add_done_callback(lambda _: self._put(number))

    def next(self) -> Ticket:
        """Return a future that is done when something is in the queue that `take` has not seen."""
        future: Ticket = Future()
        with self._lock:
            if not self._come:
                self._awaited = future
                return future
        future.set_result(None)
        return future

    def take(self, last: Gradient | None = None) -> list[Gradient]:
        """Return what has come since the last call, in that order.

        Args:
            last: This one, and those before it, may still be on their way on a GPU: whoever waits
                there for this one does so for them.

        Raises:
            CompressaError: One of them has failed.
        """
        with self._lock:
            come, self._come = self._come, deque()
        for gradient in come:
            gradient.combined.result()
        self._seen.extend(come)
        count = 0
        if last is not None and last in self._seen:
            count = self._seen.index(last) + 1
        while count < len(self._seen) and self._seen[count].come:
            count += 1
        return [self._seen.popleft() for _ in range(count)]

    def forget(self) -> None:
        """Let go of what is over."""
        with self._lock:
            self._come = deque(gradient for gradient in self._come if not gradient.over)
        self._seen = deque(gradient for gradient in self._seen if not gradient.over)

    def _put(self, number: int) -> None:
        with self._lock:
            self._come.append(self._expected.pop(number))
            awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.set_result(None)
