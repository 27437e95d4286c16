"""The DDP communication hook: buckets in, futures out.

A hook must return before its bucket is combined, and DDP waits for all futures at the end of
backward. The hook therefore only submits, and leaves one callback for the end of backward
that waits first, with a deadline, so that a failure reaches the user as the exception that it
is instead of DDP's reading of a failed future.
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotation of `bucket`
# with the class itself.
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from copy import copy
from itertools import count
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch._compile import _disable_dynamo
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from compressa.engine.device_stream import Ticket
from compressa.hooks.early import EarlyGradients
from compressa.hooks.first_bucket import FirstBucket
from compressa.hooks.handle import Handle
from compressa.hooks.refusals import check_inputs
from compressa.parameters import as_real


class DDPHook:
    """State of the hook: the engine, and what is under way in this backward.

    Args:
        model: The wrapped model.
        handle: Of the engine.
        parameters: What is trained, by name.
        scaler: The user's loss scaler, if any.

    Attributes:
        handle: As given.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        handle: Handle,
        parameters: Mapping[str, torch.nn.Parameter],
        scaler: Any,
    ) -> None:
        self._model = weakref.ref(model)  # DDP's reducer holds this object, beyond any collector
        self._engine = handle.engine
        self.handle = handle
        self._names = {id(p): name for name, p in parameters.items()}
        self._scaler = scaler
        self._hold_zeros = bool(model.find_unused_parameters)
        self._pending: list[Ticket] = []
        self._loss_scale = self._scale()
        self._first: FirstBucket | None = None
        self._early: EarlyGradients | None = None
        given = handle.config.exchange.unit_bytes or handle.config.schedule.overtaking
        if not (given or self._engine.launched):
            self._engine.planning.choose("at once", "together", joins=False)
        if model.gradient_as_bucket_view and not self._engine.launched:
            self._early = EarlyGradients(parameters, self._send, lambda: self._engine.awaited())

    def expect(self, first: FirstBucket) -> None:
        """Have something told of the first bucket; to be called once, before the first backward.

        Args:
            first: The next `submit` calls its `came`, on the thread of that backward; later ones
                do not.
        """
        self._first = first

    def owns(self, bucket: GradBucket) -> bool:
        """Whether a bucket is of this hook's model."""
        return id(bucket.parameters()[0]) in self._names

    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Submit one bucket of gradients.

        Args:
            bucket: DDP's; its buffer is lent until the future is done.

        Returns:
            A future of that buffer, averaged in place; or of the error.
        """
        with self._engine.tracer.calls() if self._engine.tracer.on else nullcontext():
            return self._submit(bucket)

    def _submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if self._first is not None:
            self._first.came()
            self._first = None
        if not self._pending:
            Variable._execution_engine.queue_callback(self._wait)
        gradients = {
            self._names[id(parameter)]: gradient
            for parameter, gradient in zip(bucket.parameters(), _gradients(bucket), strict=True)
            if gradient.numel()  # what has no elements is in no unit
        }
        if not gradients:
            tickets = [_nothing()]
        elif self._early is None:
            tickets = [self._send(gradients)]
        else:
            tickets = self._early.full(gradients)
        self._pending += tickets
        devices: Any = self._engine.device_stream.devices
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        buffer = bucket.buffer()
        others = count(len(tickets) - 1, -1)  # which two threads may count down
        errors: list[BaseException] = []

        def complete(done: Ticket) -> None:  # kept by tickets: to keep them would be a cycle
            error = done.exception()
            if error is not None:
                errors.append(error)
            if next(others):
                return
            if errors:
                # Mostly nobody looks: `_wait` has raised it. With a static graph DDP waits first.
                # A copy: the reducer keeps it, and not the frames that the error went through.
                future.set_exception(copy(errors.pop(0)))  # type: ignore[arg-type]
                return
            with self._engine.device_stream.current():  # the future notes what came before it there
                future.set_result(buffer)

        for ticket in tickets:
            ticket.add_done_callback(complete)
        return future

    def _send(self, gradients: Mapping[str, torch.Tensor]) -> Ticket:
        self.handle.integrity.begin(self.handle.next_step)
        loss_scale, hold_zeros = self._loss_scale, self._hold_zeros
        return self.handle.submit(gradients, loss_scale=loss_scale, hold_zeros=hold_zeros)

    def _wait(self) -> None:
        """At the end of backward, before DDP looks at the futures."""
        pending, self._pending = self._pending, []
        if self._early is not None:
            self._early.begin(due=False)
        self.handle.wait(pending)
        self.handle.integrity.tell()

    def begin_forward(self) -> None:
        """Before a forward pass: a failure is told here, where it can be told.

        The loss scale does not change between this and the backward pass. On a GPU, to read it is
        to wait for the optimizer, which is better done now than in the middle of backward.
        """
        self.handle.check()
        if self._engine is not self.handle.engine:  # what was under way is over
            self._engine, self._pending = self.handle.engine, []
        tracer = self._engine.tracer
        if tracer.recording is not None:
            tracer.begin_step(self.handle.next_step)
        model = self._model()
        if model is None:
            return
        self._compare(model)
        if not model.require_backward_grad_sync:
            return  # gradients of this pass go nowhere yet
        self._loss_scale = self._scale()

    def end_forward(self) -> None:
        """After a forward pass, when DDP has made ready for the backward pass, or not."""
        model = self._model()
        if model is not None and self._early is not None:
            # In a static graph a gradient may come several times, before it is in its bucket.
            self._early.begin(due=model.require_backward_grad_sync and not model.static_graph)

    def _scale(self) -> float | None:
        scaled = self._scaler is not None and self._scaler.is_enabled()
        return float(self._scaler.get_scale()) if scaled else None

    @_disable_dynamo
    def _compare(self, model: DistributedDataParallel) -> None:
        """Look at what is known of the replicas, and have buffers kept once DDP has brought them.

        A module that was compiled in place is called past its hooks, or compiled anew for them.
        """
        integrity, step = self.handle.integrity, self.handle.next_step
        integrity.settle(step)
        integrity.forward(step)
        compiled = getattr(model.module, "_compiled_call_impl", None) is not None
        brought = model._check_sync_bufs_pre_fwd()  # type: ignore[no-untyped-call]
        if brought and not compiled and integrity.due(step):
            _before_next_forward(
                model.module, lambda: integrity.keep(step, model.named_module_buffers)
            )


def _before_next_forward(module: torch.nn.Module, call: Callable[[], None]) -> None:
    """Have a function called in the next forward pass; no hook stays, which nobody could pickle."""

    @_disable_dynamo  # a module that was compiled calls its hooks in what is traced
    def once(*_: Any) -> None:
        registered.remove()
        call()

    registered = module.register_forward_pre_hook(once)


def _nothing() -> Ticket:
    """Return a ticket of which nothing is owed."""
    ticket: Ticket = Future()
    ticket.set_result(None)
    return ticket


def _gradients(bucket: GradBucket) -> list[torch.Tensor]:
    """Return a bucket's gradients; of complex parameters as real ones.

    DDP hands over a real view of a complex bucket, which torch itself cuts in wrong places.
    """
    parameters = bucket.parameters()
    if not parameters[0].is_complex():  # all of a bucket have one dtype
        return bucket.gradients()
    parts = as_real(bucket.buffer()).view(-1).split([2 * p.numel() for p in parameters])
    return [part.view(*p.shape, 2) for part, p in zip(parts, parameters, strict=True)]


class HookState(ABC):
    """What DDP hands to a hook of this library, and keeps with the model."""

    @property
    @abstractmethod
    def copied(self) -> bool:
        """Whether it was copied with something; a model that was copied has no hook."""


class Reference(HookState):
    """What DDP's reducer holds of a hook.

    No collector looks there for as long as the model lives; and an error of the engine may hold the
    model, by the frames of its traceback. So the model holds the hook, and this does not.

    A copy, as in a model that was pickled, is of no hook.

    Args:
        hook: The hook; None for none.
    """

    def __init__(self, hook: DDPHook | None = None) -> None:
        self._hook = None if hook is None else weakref.ref(hook)

    def __call__(self) -> DDPHook | None:
        """Return the hook, or None if there is none any more."""
        return None if self._hook is None else self._hook()

    @property
    def copied(self) -> bool:
        """Whether it is of no hook."""
        return self._hook is None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the hook out: it has threads and connections."""
        return Reference, ()


class ForwardHook:
    """What the model calls at a forward pass; it holds the hook for as long as the model lives.

    A copy, as in a model that was pickled, is of no hook, and does nothing.

    Args:
        hook: The hook; None for none.
    """

    def __init__(self, hook: DDPHook | None = None) -> None:
        self._hook = hook

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the hook out: it has threads and connections."""
        return type(self), ()


class BeforeForward(ForwardHook):
    """What the model calls before a forward pass."""

    def __call__(self, model: DistributedDataParallel, inputs: Any) -> None:
        """Raise what keeps the next backward pass from being combined."""
        if self._hook is not None and torch.is_grad_enabled():
            if model._join_config.enable:
                check_inputs(model)
            self._hook.begin_forward()


class AfterForward(ForwardHook):
    """What the model calls after a forward pass."""

    def __call__(self, model: DistributedDataParallel, inputs: Any, outputs: Any) -> None:
        """Have gradients of the next backward pass leave as it readies them."""
        if self._hook is not None and torch.is_grad_enabled():
            self._hook.end_forward()


def ddp_hook(state: Reference, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The function that DDP calls with each bucket.

    Args:
        state: What was registered with it; the hook must be alive.
        bucket: Of the model of that hook.

    Returns:
        A future of the bucket's buffer, averaged in place; see `DDPHook.submit`.
    """
    hook = state()
    assert hook is not None
    return hook.submit(bucket)
