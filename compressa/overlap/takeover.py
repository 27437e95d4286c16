"""Takeover: `step` and `zero_grad` of one optimizer, which may now be done later, or in parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from types import MethodType
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from compressa.hooks.first_bucket import only_watches

_UNFIT = (torch.optim.LBFGS,)


def fault_of(optimizer: object) -> str:
    """Return why updates of this optimizer can not be done parameter by parameter, or nothing."""
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        return f"OverlappedDataParallel takes a torch.optim.Optimizer, not {kind}"
    if isinstance(optimizer, _UNFIT):
        return (
            f"{kind} moves all parameters at once, by a closure that runs the model; train it with "
            "DistributedDataParallel and compressa.register_comm_hook"
        )
    if type(optimizer).__module__.startswith("torch.distributed."):
        return f"{kind} communicates by itself; give the optimizer that it is made from"
    if hasattr(optimizer.step, "_compressa"):
        return "this optimizer is taken over by another OverlappedDataParallel; close that first"
    return ""


class Takeover:
    """Has `optimizer.step` and `optimizer.zero_grad` do something else, until it is closed.

    Args:
        optimizer: Whose.
        step: Called with the arguments of `optimizer.step`.
        zero_grad: Called with `set_to_none`.

    Attributes:
        step: What `optimizer.step` was.
        zero_grad: What `optimizer.zero_grad` was.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        step: Callable[..., Any],
        zero_grad: Callable[[bool], None],
    ) -> None:
        self.step = optimizer.step
        self.zero_grad = optimizer.zero_grad
        self._optimizer = optimizer
        self._open = True
        self._before = {name: vars(optimizer).get(name) for name in ("step", "zero_grad")}

        @functools.wraps(self.step)
        def taken_step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not self._open:  # a scheduler keeps this function
                return self.step(*args, **kwargs)
            optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers look for it
            return step(*args, **kwargs)

        @functools.wraps(self.zero_grad)
        def taken_zero_grad(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            if not self._open:
                self.zero_grad(set_to_none)
            else:
                zero_grad(set_to_none)

        taken_step._compressa = True  # type: ignore[attr-defined]
        # Methods, as schedulers expect.
        optimizer.step = MethodType(taken_step, optimizer)  # type: ignore[method-assign]
        optimizer.zero_grad = MethodType(taken_zero_grad, optimizer)  # type: ignore[method-assign]
        self._placed = {name: vars(optimizer)[name] for name in self._before}

    def reason_to_step_at_once(self) -> str:
        """Return why a step must be done as a whole and now, or nothing."""
        optimizer = self._optimizer
        hooks = chain(
            optimizer._optimizer_step_pre_hooks.values(),
            optimizer._optimizer_step_post_hooks.values(),
            torch_optimizer._global_optimizer_pre_hooks.values(),
            torch_optimizer._global_optimizer_post_hooks.values(),
        )
        if not all(map(only_watches, hooks)):
            return "hooks of the optimizer's step"
        if hasattr(optimizer, "grad_scale") or hasattr(optimizer, "found_inf"):
            return "a loss scaler within the step"
        return ""

    def close(self) -> None:
        """Give the optimizer back."""
        self._open = False
        for name, before in self._before.items():
            if vars(self._optimizer).get(name) is not self._placed[name]:
                continue  # somebody has put something around it since
            if before is None:
                delattr(self._optimizer, name)
            else:
                setattr(self._optimizer, name, before)
