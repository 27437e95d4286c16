"""FirstBucket: a hook that no bucket reaches is found out at the first optimizer step.

A framework that ignores the slot that it was given, a forward pass that goes past
DistributedDataParallel, or a `no_sync` that never ends: training goes on in all three, and nothing
else says that no gradient is compressed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_PASSED_BY = (
    "an optimizer has stepped on gradients of a wrapped model that has given its hook none: this "
    "rank's gradients were neither compressed nor combined. Call the wrapped model, and not its "
    "module, in the forward pass, and leave no_sync() before the last forward and backward pass of "
    "a step"
)
_NOT_REGISTERED = (
    "an optimizer has stepped, and no wrapped model has the hook of compressa.comm_hook: "
    "nothing is compressed. The framework has ignored the slot where you put it (Lightning calls "
    "its own on CUDA only, Accelerate's and Trainer's take torch's hooks only); use "
    "compressa.integrations, or call model.register_comm_hook(state, hook) once the network is "
    "wrapped"
)


class FirstBucket:
    """Warns once if an optimizer uses gradients of a model before its hook has had a bucket.

    Until that has come, torch calls this after each step of any optimizer. Within a step torch goes
    through its hooks, and none can be removed: one that has spoken stays, and does nothing.

    Args:
        models: Returns those whose hook it is; None if they do not exist any more.
    """

    def __init__(self, models: Callable[[], Sequence[nn.Module] | None]) -> None:
        self._models = models
        self._over = False
        self._registered = register_optimizer_step_post_hook(self._stepped)

    def came(self) -> None:
        """Stop watching; not from within an optimizer's step."""
        self._registered.remove()

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if self._over:
            return
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        stepped = {id(p) for p in parameters if p.grad is not None}
        if not stepped:
            return
        models = self._models()
        if models and not any(id(p) in stepped for model in models for p in model.parameters()):
            return  # the optimizer is another model's
        self._over = True
        if models is not None:
            # At the line that calls `optimizer.step()`, past torch's own wrapper of it.
            said = _PASSED_BY if models else _NOT_REGISTERED
            warnings.warn(said, RuntimeWarning, stacklevel=3)


def only_watches(hook: Callable[..., Any]) -> bool:
    """Whether a hook of optimizers' steps is a `FirstBucket`'s, which changes nothing.

    One that waits for a model's first bucket, or has spoken, may stay for as long as the process.
    """
    return isinstance(getattr(hook, "__self__", None), FirstBucket)
