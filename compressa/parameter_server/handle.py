"""Handle: a push or a pull that is under way."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import torch


@dataclass(eq=False)
class Handle:
    """A push or a pull under way, for `Worker.wait`.

    Attributes:
        step: The step.
        keys: The names of the keys.
        values: What a pull writes to, by name; empty for a push.
        meets: Whether it is for when all workers have come.
    """

    step: int
    keys: tuple[str, ...]
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    _futures: list[Future[None]] = field(default_factory=list, repr=False)
    meets: bool = False

    @property
    def done(self) -> bool:
        """Whether `wait` returns or raises at once."""
        return all(future.done() for future in self._futures)
