"""Steps: what `optimizer.step()` and `optimizer.zero_grad()` do instead."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from compressa.hooks import Handle
from compressa.overlap.arrivals import Gradient, Settings
from compressa.overlap.independence import check_both_ways
from compressa.overlap.opening import Options
from compressa.overlap.reducer import Reducer
from compressa.overlap.takeover import Takeover
from compressa.overlap.updates import ParameterSettings, Updates
from compressa.overlap.uses import Uses

_CHECKED_STEPS = 2
_TRIED, _FASTER = "steps without it are measured", "steps without it take less time"


class Steps:
    """Steps of one optimizer: deferred where they can be, and done as a whole where not.

    Args:
        optimizer: Whose; it is taken over.
        handle: Keeps the engine.
        reducer: Brings gradients.
        uses: Makes parameters lazy whose updates are due.
        options: What the user wants.

    Attributes:
        updates: Those that are due.
        ended: Number of steps without overlap, by reason.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        handle: Handle,
        reducer: Reducer,
        uses: Uses,
        options: Options,
    ) -> None:
        self.ended: Counter[str] = Counter()
        self._optimizer = optimizer
        self._handle = handle
        self._reducer = reducer
        self._uses = uses
        self._options = options
        self._checked = 0
        self._takeover = Takeover(optimizer, self._step, self._zero_grad)
        self.updates = Updates(
            optimizer,
            self._takeover.step,
            reducer,
            handle.engine,
            options.clip_each,
            uses.updated,
        )

    def keep_due(self, set_to_none: bool) -> None:
        """Gradients are about to be cleared; keep those whose updates are due."""
        with torch._C.DisableTorchFunctionSubclass():
            for gradient in self.updates.due.values():
                parameter = gradient.parameter
                if parameter.grad is gradient.values:
                    gradient.cleared = None if set_to_none else torch.zeros_like(gradient.values)
                    parameter.grad = gradient.cleared

    def close(self) -> None:
        """Give the optimizer back; what is due is given up."""
        self._takeover.close()
        self.updates.drop()

    def _zero_grad(self, set_to_none: bool) -> None:
        self.keep_due(set_to_none)
        self._takeover.zero_grad(set_to_none)

    def _step(self, *args: Any, **kwargs: Any) -> Any:
        self._handle.integrity.tell()
        self.updates.flush()
        closure = args[0] if args else kwargs.get("closure")
        if callable(closure):
            return self._step_by(closure)
        self._reducer.complete()
        reason = self._reason(bool(args or kwargs))
        if reason:
            return self._step_at_once(reason, *args, **kwargs)
        if self._options.debug and self._checked < _CHECKED_STEPS:
            return self._check()
        if self._reducer.late or not self.updates.independence.begun:
            return self._defer()
        if self._reducer.reads:
            return self._step_at_once("gradients were read before the optimizer's step")
        self._settle()
        return self._takeover.step()

    def _reason(self, arguments: bool) -> str:
        """Return why a step must be done as a whole and now, or nothing."""
        if not self._options.overlap:
            return "overlap=False"
        if arguments:
            return "arguments of the optimizer's step"
        reason = self._takeover.reason_to_step_at_once()
        now = self._handle.engine.planning.overlap
        if reason or now.deferring:
            return reason
        return _TRIED if now.measuring else _FASTER

    def _step_by(self, closure: Callable[[], Any]) -> Any:
        """Do a step that evaluates the model; gradients have come when it has done so."""

        def evaluate() -> Any:
            loss = closure()
            self._reducer.complete()
            self._settle()
            self._handle.integrity.tell()
            return loss

        self.ended["a closure"] += 1
        return self._takeover.step(evaluate)

    def _step_at_once(self, reason: str, *args: Any, **kwargs: Any) -> Any:
        self.ended[reason] += 1
        began_s = time.perf_counter()
        self._settle()
        seconds, step = time.perf_counter() - began_s, self._handle.next_step - 1
        tracer = self._handle.engine.tracer
        tracer.span("wait", f"no overlap: {reason}", step, began_s, seconds)
        return self._takeover.step(*args, **kwargs)

    def _settle(self) -> None:
        """Have all gradients be there."""
        self._reducer.settle(self._reducer.current.values())
        groups = self._optimizer.param_groups
        self.updates.clip([p for g in groups for p in g["params"] if p.grad is not None])

    def _check(self) -> None:
        """Do a step both ways."""
        self._checked += 1
        self._reducer.settle(self._reducer.current.values())
        chosen: list[ParameterSettings] = []
        for group in self._optimizer.param_groups:
            settings = _settings(group)
            chosen += [(p, settings) for p in group["params"] if p.grad is not None]
        parameters = [p for p, _ in chosen]

        def whole() -> None:
            self.updates.clip(parameters)
            self._takeover.step()

        def one_by_one() -> None:
            for one in chosen:
                self.updates.run([one])

        check_both_ways(self._optimizer, parameters, whole, one_by_one)

    def _defer(self) -> None:
        """Have updates be due; do at once what no other rank has a part in."""
        coming = {id(g.parameter): g for g in self._reducer.current.values() if not g.over}
        later: list[tuple[Gradient, Settings]] = []
        now: list[ParameterSettings] = []
        for group in self._optimizer.param_groups:
            settings = _settings(group)
            for parameter in group["params"]:
                gradient = coming.get(id(parameter))
                own = gradient is not None and parameter.grad is gradient.values
                if gradient is not None and own and self._uses.can_be_lazy(parameter):
                    later.append((gradient, settings))
                    continue
                if gradient is not None and own:
                    self._reducer.settle([gradient])
                if parameter.grad is not None:
                    now.append((parameter, settings))
        self.updates.run(now)
        self.updates.defer(later)
        self._uses.make_lazy(gradient.parameter for gradient in self.updates.due.values())


def _settings(group: Mapping[str, Any]) -> Settings:
    """Return hyper-parameters as they are now; schedulers write into those that are tensors."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }
