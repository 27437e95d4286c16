"""Arrivals: gradients of one parameter each, on their way, in the order in which they come."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

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
        combined: Done when `values` are the mean.
        before: What `parameter.grad` was, if no backward of this rank has reached the parameter.
        reached: Whether one has.
        settings: With which hyper-parameters its update is due; None while none is.
        over: Whether it was waited for and, if an update was due, that is done.
    """

    parameter: torch.nn.Parameter
    name: str
    step: int
    values: torch.Tensor
    combined: Future[None]
    before: torch.Tensor | None = None
    reached: bool = True
    settings: Settings | None = None
    over: bool = False


class Arrivals:
    """A queue that the engine's threads fill, and the training thread empties."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._come: deque[Gradient] = deque()
        self._awaited: Future[None] | None = None

    def expect(self, gradient: Gradient) -> None:
        """Have a gradient in the queue as soon as it is combined, or has failed."""
        gradient.combined.add_done_callback(lambda _: self._put(gradient))

    def next(self) -> Future[None]:
        """Return a future that is done when the queue is not empty."""
        future: Future[None] = Future()
        with self._lock:
            if not self._come:
                self._awaited = future
                return future
        future.set_result(None)
        return future

    def take(self) -> list[Gradient]:
        """Return what has come since the last call.

        Raises:
            CompressaError: One of them has failed.
        """
        with self._lock:
            come, self._come = self._come, deque()
        for gradient in come:
            gradient.combined.result()
        return list(come)

    def _put(self, gradient: Gradient) -> None:
        with self._lock:
            self._come.append(gradient)
            awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.set_result(None)
