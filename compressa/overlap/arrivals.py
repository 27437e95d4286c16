"""Arrivals: gradients on their way, those that were submitted together, in the order of arrival."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from compressa.engine.device_stream import Ticket, reached

Settings = Mapping[str, Any]
"""A parameter group's hyper-parameters, without its parameters."""


@dataclass(eq=False, slots=True)
class Gradient:
    """A parameter's gradient of one step, from the moment in which backward has it.

    Attributes:
        parameter: Of which.
        name: Its name.
        step: Of which optimizer step.
        values: What is averaged over the ranks, in place.
        before: What `parameter.grad` was, if no backward of this rank has reached the parameter.
        reached: Whether one has.
        combined: Once it is submitted, done when `values` are the mean; on a GPU, when that is
            enqueued.
        settings: With which hyper-parameters its update is due; None while none is.
        over: Whether it was waited for and, if an update was due, that is done.
        cleared: What `parameter.grad` was set to when it was cleared while the update was due.
    """

    parameter: torch.nn.Parameter
    name: str
    step: int
    values: torch.Tensor
    before: torch.Tensor | None = None
    reached: bool = True
    combined: Ticket = field(init=False)
    settings: Settings | None = None
    over: bool = False
    cleared: torch.Tensor | None = None


def come(combined: Ticket) -> bool:
    """Whether what was submitted is the mean now.

    Raises:
        CompressaError: It will never be.
    """
    return combined.done() and reached(combined.result())


class Arrivals:
    """A queue that the engine's threads fill, and the training thread empties.

    On a GPU, what is in it may still be on its way there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[int, list[Gradient]] = {}
        self._numbers = itertools.count()
        self._come: deque[list[Gradient]] = deque()
        self._seen: deque[list[Gradient]] = deque()
        self._awaited: Ticket | None = None

    def expect(self, gradients: list[Gradient], combined: Ticket) -> None:
        """Have gradients in the queue as soon as they are combined, or have failed.

        Args:
            gradients: What was submitted together.
            combined: Their ticket, which becomes theirs.
        """
        for gradient in gradients:
            gradient.combined = combined
        number = next(self._numbers)
        self._expected[number] = gradients
        # A future keeps its callbacks for ever: one that held gradients would be held by them.
        combined.add_done_callback(lambda _: self._put(number))

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
            came, self._come = self._come, deque()
        for gradients in came:
            gradients[0].combined.result()
        self._seen.extend(came)
        count = 0
        if last is not None:
            found = (i for i, gradients in enumerate(self._seen, 1) if last in gradients)
            count = next(found, 0)
        while count < len(self._seen) and come(self._seen[count][0].combined):
            count += 1
        return [gradient for _ in range(count) for gradient in self._seen.popleft()]

    def forget(self) -> None:
        """Let go of what is over."""
        with self._lock:
            self._come = _left(self._come)
        self._seen = _left(self._seen)

    def _put(self, number: int) -> None:
        with self._lock:
            self._come.append(self._expected.pop(number))
            awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.set_result(None)


def _left(queue: deque[list[Gradient]]) -> deque[list[Gradient]]:
    """What is not over."""
    left = ([g for g in gradients if not g.over] for gradients in queue)
    return deque(gradients for gradients in left if gradients)
