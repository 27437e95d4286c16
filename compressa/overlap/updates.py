"""Updates: the optimizer's own step, for some parameters at a time, when their gradients have come.

The optimizer is asked for a step with parameter groups that hold these parameters only, and the
hyper-parameters of the moment in which the user asked. All of it happens on the thread that wants
a parameter, in the order in which gradients come, so that nothing races with the user's code.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from compressa.engine.engine import Engine
from compressa.errors import StateError
from compressa.overlap.arrivals import Gradient, Settings
from compressa.overlap.independence import Independence
from compressa.overlap.lazy_reads import release
from compressa.overlap.reducer import Reducer

ParameterSettings = tuple[torch.nn.Parameter, Settings]
"""A parameter to be updated, and with what."""


class Updates:
    """Which updates are due, and how they are done.

    Args:
        optimizer: Whose updates.
        step: Its own `step`, as it was before anybody took it over.
        reducer: Brings gradients.
        engine: Waits for them.
        clip_norm: Norm to which each parameter's gradient is cut before its update; None: not cut.
        updated: Told which parameters have been updated that were due.

    Attributes:
        due: By `id` of the parameter.
        independence: Watches the first of them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        step: Callable[[], Any],
        reducer: Reducer,
        engine: Engine,
        clip_norm: float | None,
        updated: Callable[[Iterable[torch.nn.Parameter]], None],
    ) -> None:
        self.due: dict[int, Gradient] = {}
        self.independence = Independence(optimizer)
        self._optimizer = optimizer
        self._step = step
        self._reducer = reducer
        self._engine = engine
        self._clip_norm = clip_norm
        self._updated = updated
        self._as_asked: dict[str, bool] = {}
        self._running = False

    def defer(self, gradients: Sequence[tuple[Gradient, Settings]]) -> None:
        """Have updates be due, and do those whose gradients have come."""
        self._as_asked = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
        for gradient, settings in gradients:
            gradient.settings = settings
            self.due[id(gradient.parameter)] = gradient
        self.apply_arrived()

    def apply_arrived(self) -> bool:
        """Do the due updates whose gradients have come; return whether there were any."""
        ready = self._take()
        self._apply(ready)
        return bool(ready)

    def until(self, gradient: Gradient) -> None:
        """Do due updates until a certain one is done.

        Raises:
            CompressaError: The engine has failed.
        """
        if self._running:
            raise StateError(
                f"the optimizer's step reads {gradient.name!r} while it updates other parameters, "
                "so that it is not per parameter; give OverlappedDataParallel overlap=False"
            )
        while not gradient.over:
            if self.apply_arrived():
                continue
            if gradient.combined.done():
                self._apply(self._take(gradient) or [gradient])
            else:
                self._engine.wait([self._reducer.arrivals.next()], gradient.name)

    def flush(self) -> None:
        """Do all due updates."""
        while self.due:
            self.until(next(iter(self.due.values())))

    def drop(self) -> None:
        """Forget what is due; parameters stay as they are."""
        release((g.parameter for g in self.due.values()), torch.nn.Parameter)
        self._reducer.release(self.due.values())
        self.due.clear()

    def clip(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Cut each gradient by itself."""
        if self._clip_norm is not None:
            for parameter in parameters:
                torch.nn.utils.clip_grad_norm_(parameter, self._clip_norm)

    def run(self, chosen: Sequence[ParameterSettings]) -> None:
        """Have the optimizer step, for some parameters only; `p.grad` is what they are given."""
        by_settings: dict[int, dict[str, Any]] = {}
        for parameter, settings in chosen:
            group = by_settings.setdefault(id(settings), {**settings, "params": []})
            group["params"].append(parameter)
        groups = list(by_settings.values())
        if not groups:
            return
        with self._as_asked_for():
            self.clip([parameter for parameter, _ in chosen])
            with self._restricted(groups), self.independence.watched(groups):
                self._step()

    def _take(self, last: Gradient | None = None) -> list[Gradient]:
        come = self._reducer.arrivals.take(last)
        return [g for g in come if g.settings is not None and not g.over]

    def _apply(self, gradients: Sequence[Gradient]) -> None:
        if not gradients:
            return
        self._engine.wait(list(dict.fromkeys(g.combined for g in gradients)))
        chosen: list[ParameterSettings] = []
        shown: list[tuple[torch.nn.Parameter, torch.Tensor | None]] = []
        unreached = self._reducer.unreached(gradients)
        release((gradient.parameter for gradient in gradients), torch.nn.Parameter)
        self._reducer.release(gradients)
        for gradient in gradients:
            parameter, settings = gradient.parameter, gradient.settings
            assert settings is not None
            del self.due[id(parameter)]
            values = gradient.before if gradient in unreached else gradient.values
            shown.append((parameter, _shown(gradient, values)))
            parameter.grad = values
            if values is not None:
                chosen.append((parameter, settings))
        began_s = time.perf_counter()
        try:
            self.run(chosen)
        finally:
            for parameter, values in shown:
                parameter.grad = values
        self._updated(parameter for parameter, _ in shown)
        self._record(gradients, began_s)

    def _record(self, gradients: Sequence[Gradient], began_s: float) -> None:
        first, more = gradients[0], len(gradients) - 1
        name = f"{first.name} (+{more})" if more else first.name
        seconds = time.perf_counter() - began_s
        self._engine.tracer.span("apply", name, first.step, began_s, seconds)

    @contextlib.contextmanager
    def _restricted(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        own = self._optimizer.param_groups
        self._optimizer.param_groups = groups
        self._running = True
        try:
            yield
        finally:
            self._running = False
            self._optimizer.param_groups = own

    @contextlib.contextmanager
    def _as_asked_for(self) -> Iterator[None]:
        """Leave what the forward pass is in: autocast, inference, modes that watch operators."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
            for device, enabled in self._as_asked.items():
                if torch.is_autocast_enabled(device) != enabled:
                    stack.enter_context(torch.amp.autocast(device, enabled=enabled))
            if torch._C._len_torch_dispatch_stack():
                stack.enter_context(_disable_current_modes())
            yield


def _shown(gradient: Gradient, values: torch.Tensor | None) -> torch.Tensor | None:
    """Return what `p.grad` is after an update with some values, or without an update."""
    now = gradient.parameter.grad
    if now is gradient.values:
        return values
    # If the user has cleared it since, it stays so; where no rank had any, nothing was cleared.
    return None if values is None and now is gradient.cleared else now
