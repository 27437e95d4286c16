"""Independence: whether an optimizer's step is per parameter, as far as can be seen from outside.

A step for some parameters at a time must do what one for all of them does. So it may keep what it
remembers in `optimizer.state`, by parameter, and nowhere else, and may not draw random numbers,
whose order would depend on which gradient comes first.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from compressa.arrays import bits_of
from compressa.errors import StateError
from compressa.overlap.arrivals import Settings

_CALLS = 64  # what an optimizer does rarely it does not do in its step
_FIX = "give OverlappedDataParallel overlap=False"


class Independence:
    """Watches the first steps of an optimizer.

    Args:
        optimizer: What is watched.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._calls = 0

    @property
    def begun(self) -> bool:
        """Whether a step has been watched."""
        return self._calls > 0

    @contextlib.contextmanager
    def watched(self, groups: Sequence[Settings]) -> Iterator[None]:
        """Watch a step.

        Args:
            groups: The parameter groups that it is given.

        Raises:
            StateError: It is not per parameter.
        """
        self._calls += 1
        if self._calls > _CALLS:
            yield
            return
        before = self._outside(groups)
        yield
        after = self._outside(groups)
        for name in {**before, **after}:
            if name not in before or name not in after or _differ(before[name], after[name]):
                kind = type(self._optimizer).__name__
                raise StateError(
                    f"{kind}.step changes {name}, so that it is not per parameter; {_FIX}"
                )

    def _outside(self, groups: Sequence[Settings]) -> dict[str, Any]:
        """What no step per parameter changes, by what it is called."""
        kept: dict[str, Any] = {
            f"the attribute {name!r}": _seen(value)
            for name, value in vars(self._optimizer).items()
            if isinstance(value, int | float | torch.Tensor)
        }
        for index, group in enumerate(groups):
            for key, value in group.items():
                if key != "params":
                    kept[f"{key!r} of parameter group {index}"] = _seen(value)
        for owner in self._optimizer.state:
            if not isinstance(owner, torch.Tensor):
                kept[f"optimizer.state[{owner!r}]"] = None
        kept["the state of torch's random numbers"] = torch.get_rng_state()
        return kept


def check_both_ways(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    whole: Callable[[], Any],
    one_by_one: Callable[[], None],
) -> None:
    """Do a step as a whole, take it back, and do it parameter by parameter.

    Args:
        optimizer: Whose step.
        parameters: What it updates; their gradients are there.
        whole: Does the step.
        one_by_one: Does it for one parameter after another.

    Raises:
        StateError: The results differ, in any bit.
    """
    before = [_copied(optimizer, p) for p in parameters]
    whole()
    due = [_copied(optimizer, p) for p in parameters]
    for parameter, (values, gradient, state) in zip(parameters, before, strict=True):
        with torch.no_grad():
            parameter.copy_(values)
        parameter.grad = gradient
        optimizer.state.pop(parameter, None)
        if state is not None:
            optimizer.state[parameter] = state
    one_by_one()
    for parameter, (values, _, _) in zip(parameters, due, strict=True):
        if not torch.equal(bits_of(parameter.detach()), bits_of(values)):
            raise StateError(
                f"{type(optimizer).__name__}'s step is not per parameter: done for one after "
                f"another, it gives other values than done for all at once; {_FIX}"
            )


def _copied(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter
) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, Any] | None]:
    gradient = None if parameter.grad is None else parameter.grad.clone()
    state = copy.deepcopy(optimizer.state[parameter]) if parameter in optimizer.state else None
    return parameter.detach().clone(), gradient, state


def _seen(value: Any) -> Any:
    return (id(value), value._version) if isinstance(value, torch.Tensor) else value


def _differ(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return not torch.equal(before, after)
    return before is not after and bool(before != after)
