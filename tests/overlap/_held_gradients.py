"""A world of one whose gradients come when a test wants them to, and not before."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from compressa import OverlappedDataParallel

FACTOR = 3.0
"""What combining multiplies a gradient by: one that is used too early is wrong."""


def alone() -> dist.ProcessGroup:
    """A process group of one rank, which nobody has to initialise."""
    made: Any = dist.ProcessGroup
    group: dist.ProcessGroup = made(0, 1)
    return group


class Held:
    """What was submitted and has not come.

    Args:
        seed: Of the order in which gradients come.
    """

    def __init__(self, seed: int = 0) -> None:
        self.coming: list[tuple[dict[str, torch.Tensor], Future[Any]]] = []
        self.waits = 0
        self.mark: Callable[[], Any] = lambda: None
        self._random = random.Random(seed)

    def submit(self, gradients: Mapping[str, torch.Tensor], **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.coming.append((dict(gradients), future))
        return future

    def wait(self, futures: Sequence[Future[Any]], name: str = "") -> None:
        """Let gradients come, in any order, until those are there that are waited for."""
        for future in futures:
            self.waits += not future.done()
            while not future.done():
                self.let_come(self._random.randrange(len(self.coming)))
            future.result()

    def let_come(self, number: int) -> None:
        gradients, future = self.coming.pop(number)
        for values in gradients.values():
            assert type(values) is torch.Tensor, "the engine must not be handed what is lazy"
            with _disable_current_modes():  # on other threads there are none
                values.mul_(FACTOR)
        future.set_result(self.mark())


@contextlib.contextmanager
def held(
    module: nn.Module, optimizer: torch.optim.Optimizer, *, seed: int = 0, **options: Any
) -> Iterator[tuple[OverlappedDataParallel, Held]]:
    """Wrap a module; its gradients are held back."""
    made = Held(seed)
    group = alone()
    model = OverlappedDataParallel(
        module, optimizer, {"compressor": "none"}, process_group=group, **options
    )
    engine: Any = model.handle.engine
    engine.submit, engine.wait = made.submit, made.wait
    units_of = {parameter.name: [unit] for unit, parameter in enumerate(engine.parameters)}
    engine.awaited = lambda: (units_of, dict.fromkeys(range(len(units_of)), 1))
    try:
        yield model, made
    finally:
        model.close()


def train_plain(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[Callable[[nn.Module], torch.Tensor]],
    after: Callable[[], None] = lambda: None,
) -> None:
    """Train as a world of one would whose gradients are combined at once."""
    for loss in losses:
        optimizer.zero_grad()
        loss(module).backward()
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(FACTOR)
        optimizer.step()
        after()
