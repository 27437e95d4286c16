"""Reducer: gradients leave as backward readies them, once units that go together have all.

What backward has not reached leaves when the optimizer steps, or when a gradient is read: not at
the end of backward, which several of them may share, and which there may be several of within one
(checkpointing that re-enters autograd). As with DistributedDataParallel, it is an error unless
`find_unused_parameters` was asked for. Then what was there leaves, or zeros, and with it a flag for
each parameter, as one more parameter of the engine's: a gradient that no rank has is put back to
what it was. What leaves is in `p.grad` from the end of backward: who collects gradients, to clip or
to unscale them, has the same ones on every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import Variable

from compressa.engine.device_stream import Ticket
from compressa.errors import CompressaError, StateError
from compressa.hooks.handle import Handle
from compressa.hooks.held import HeldGradients
from compressa.overlap.arrivals import Arrivals, Gradient, come
from compressa.overlap.lazy_reads import lazy_class, make_lazy, release
from compressa.overlap.memory import Memory, check_kind
from compressa.parameters import as_real

_NO_BACKWARD = -1
USED = "compressa: used on this rank"
"""Name of the flags, which no parameter of a module can have."""


class Reducer:
    """Submits gradients to the engine, and knows which are under way.

    Args:
        handle: Keeps the engine and the number of the next step.
        parameters: What is trained, by name, in the model's order.
        find_unused: Whether backward may leave parameters out.
        scaler: The user's loss scaler, if any.
        read: Called when gradients that are under way are wanted; none given means any.

    Attributes:
        arrivals: Gradients that have come.
        current: What backward has had since the last forward pass with synchronisation, by name.
        reads: How often gradients were wanted before they had been waited for.
    """

    def __init__(
        self,
        handle: Handle,
        parameters: Mapping[str, torch.nn.Parameter],
        *,
        find_unused: bool,
        scaler: Any,
        read: Callable[[Sequence[torch.Tensor]], None],
    ) -> None:
        self.arrivals = Arrivals()
        self.current: dict[str, Gradient] = {}
        self.reads = 0
        self._handle = handle
        self._parameters = dict(parameters)
        self._names = {id(p): name for name, p in parameters.items()}
        self._find_unused = find_unused
        self._scaler = scaler
        self._lazy = lazy_class(torch.Tensor, read)
        self._memory = Memory(parameters)
        self._expecting = False
        self._reached: set[str] = set()
        self._placed: dict[str, Gradient] = {}  # what backward has not reached so far
        self._backward = _NO_BACKWARD  # the last one whose end is waited for
        self._held = HeldGradients(lambda: handle.engine.awaited())
        self._flags: tuple[torch.Tensor, Ticket] | None = None
        self._loss_scale: float | None = None
        self._hooks = self._listen()

    def expect(self) -> None:
        """The next backward's gradients are to be combined, on top of what `p.grad` holds."""
        self.stay_local()
        self.arrivals.forget()
        self.current, self.reads = {}, 0
        self._held.begin()
        self._expecting = True
        scaled = self._scaler is not None and self._scaler.is_enabled()
        self._loss_scale = float(self._scaler.get_scale()) if scaled else None

    def stay_local(self) -> None:
        """The next backward's gradients stay on this rank, on top of what `p.grad` holds."""
        self.complete()
        self.settle(g for g in self.current.values() if g.settings is None)
        self._expecting = False

    def complete(self) -> None:
        """Have nothing more come in this step; submit what backward has not reached.

        Raises:
            StateError: It should have; or backward is not over.
        """
        if not self._expecting or not self.current:
            return
        if torch._C._current_graph_task_id() >= 0:
            raise StateError(
                "a gradient was read during backward, when its mean over the ranks can not be "
                "known; read it afterwards, or register a hook on the tensor for this rank's own"
            )
        missing = [name for name in self._parameters if name not in self.current]
        if missing and not self._find_unused:
            raise StateError(
                f"backward has not reached {missing[0]!r}"
                + (f" and {len(missing) - 1} other parameters" if missing[1:] else "")
                + "; give OverlappedDataParallel find_unused_parameters=True if that is meant"
            )
        reached = [float(name in self._reached) for name in self._parameters]
        for name in missing:
            self._place(name)
            self._submit(self._placed.pop(name))
        if self._find_unused:
            self._submit_flags(reached)

    def placed(self, tensors: Collection[int]) -> bool:
        """Whether one of some tensors, by `id`, is of what backward has not reached so far.

        None given means any.
        """
        return any(not tensors or id(g.values) in tensors for g in self._placed.values())

    @property
    def late(self) -> bool:
        """Whether a gradient has not come."""
        waited = dict.fromkeys(g.combined for g in self.current.values() if not g.over)
        return not all(map(come, waited))

    def settle(self, gradients: Iterable[Gradient]) -> None:
        """Wait until gradients have come, and have `p.grad` be their means.

        Raises:
            CompressaError: The engine has failed.
        """
        waited = [gradient for gradient in gradients if not gradient.over]
        self._handle.engine.wait(list(dict.fromkeys(gradient.combined for gradient in waited)))
        self.release(waited)
        for gradient in self.unreached(waited):
            if gradient.parameter.grad is gradient.values:
                gradient.parameter.grad = gradient.before

    def release(self, gradients: Collection[Gradient]) -> None:
        """Gradients have come, or never will; nobody needs to wait for them any more."""
        for gradient in gradients:
            gradient.over = True
        release((gradient.values for gradient in gradients), torch.Tensor)

    def unreached(self, gradients: Iterable[Gradient]) -> list[Gradient]:
        """Return those of gradients whose parameters no rank's backward has reached.

        Raises:
            CompressaError: The engine has failed.
        """
        doubtful = [gradient for gradient in gradients if not gradient.reached]
        if not doubtful or self._flags is None:
            return []
        flags, combined = self._flags
        self._handle.engine.wait([combined])
        names = list(self._parameters)
        return [g for g in doubtful if not flags[names.index(g.name)] > 0]

    def close(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self.release([*self.current.values(), *self._placed.values()])

    def _listen(self) -> list[Any]:
        # Parameters keep their hooks for ever; those must not keep all this.
        reducer = weakref.ref(self)

        def ready(parameter: torch.Tensor) -> None:
            own = reducer()
            if own is not None:
                own._ready(parameter)

        return [
            p.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]
            for p in self._parameters.values()
        ]

    def _ready(self, parameter: torch.Tensor) -> None:
        """In backward: a parameter's gradient is there."""
        name = self._names[id(parameter)]
        earlier = self.current.get(name)
        if earlier is not None and (self._expecting or not earlier.over):
            raise StateError(
                f"backward has reached {name!r} twice after one forward pass; run a forward pass "
                "before each backward, use no_sync() for all but the last, and "
                "use_reentrant=False where checkpoints share parameters"
            )
        self._reached.add(name)
        if not self._expecting:
            return
        if self._find_unused:
            self._take_back(name)
            self._await_end()
        self._submit(self._gradient(name, self._own(name, parameter)))

    def _await_end(self) -> None:
        """Have `p.grad` be there for all parameters when this backward ends."""
        backward = torch._C._current_graph_task_id()
        if backward == self._backward:
            return
        self._backward = backward
        reducer = weakref.ref(self)  # autograd may keep what it calls until the next backward

        def place() -> None:
            own = reducer()
            if own is not None:
                own._place_missing()

        Variable._execution_engine.queue_callback(place)

    def _place_missing(self) -> None:
        if self._expecting:
            for name in self._parameters:
                if name not in self.current:
                    self._place(name)

    def _place(self, name: str) -> None:
        """Have `p.grad` be what leaves of a parameter that backward has not reached."""
        if name in self._placed:
            return
        parameter = self._parameters[name]
        if name in self._reached:  # under no_sync()
            gradient = self._gradient(name, self._own(name, parameter))
        else:
            before = parameter.grad
            with torch._C.DisableTorchFunctionSubclass():
                room = self._memory.room(name, parameter)
                parameter.grad = room.zero_() if before is None else room.copy_(before)
            gradient = self._gradient(name, parameter.grad, before, reached=False)
        make_lazy([gradient.values], self._lazy)
        self._placed[name] = gradient

    def _take_back(self, name: str) -> None:
        """Another backward has reached a parameter after all, and has added to what was placed."""
        placed = self._placed.pop(name, None)
        if placed is not None:
            release([placed.values], torch.Tensor)

    def _gradient(
        self,
        name: str,
        values: torch.Tensor,
        before: torch.Tensor | None = None,
        *,
        reached: bool = True,
    ) -> Gradient:
        step = self._handle.next_step
        return Gradient(self._parameters[name], name, step, values, before, reached)

    def _own(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """Have the gradient be in memory that no other tensor uses, and return it.

        Raises:
            StateError: It is of a kind that can not be combined.
        """
        gradient = parameter.grad
        assert gradient is not None
        check_kind(name, gradient)
        if not self._handle.engine.planning.overlap.deferring and self._memory.owns(gradient):
            return gradient
        parameter.grad = self._memory.moved(name, gradient)
        return parameter.grad

    def _submit_flags(self, reached: Sequence[float]) -> None:
        if self._held:  # in a unit with the flags
            self._send_held()
        flags = torch.tensor(reached, device=self._handle.engine.device_stream.device)
        combined = self._send({USED: flags})
        self._flags = flags, combined
        self._end()

    def _settle_flags(self) -> None:
        """Wait for those of the last step, for which nobody may have waited."""
        flags, self._flags = self._flags, None
        if flags is not None:
            self._handle.engine.wait([flags[1]])

    def _submit(self, gradient: Gradient) -> None:
        name, first = gradient.name, not self.current
        if first:
            self._settle_flags()
        self.current[name] = gradient
        with torch._C.DisableTorchFunctionSubclass():
            # The engine works on the same memory by another tensor, which is not lazy.
            complete = self._held.add(name, as_real(gradient.values.detach()))
        make_lazy([gradient.values], self._lazy)
        if complete:
            self._send_held()
        if not self._find_unused and len(self.current) == len(self._parameters):
            self._end()

    def _send_held(self) -> None:
        held = self._held.take()
        try:
            combined = self._send(held)
        except CompressaError:
            self.release([self.current.pop(name) for name in held])  # nobody can wait for them
            raise
        self.arrivals.expect([self.current[name] for name in held], combined)

    def _send(self, values: Mapping[str, torch.Tensor]) -> Ticket:
        self._handle.integrity.begin(self._handle.next_step)
        return self._handle.submit(
            values, loss_scale=self._loss_scale, hold_zeros=self._find_unused
        )

    def _end(self) -> None:
        self._expecting = False
        self._reached.clear()
