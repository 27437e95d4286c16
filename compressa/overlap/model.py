"""OverlappedDataParallel: data parallelism whose communication goes on in the next forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _broadcast_coalesced
from torch._compile import _disable_dynamo

from compressa.config import Source
from compressa.engine.measuring.stats import WAYS, Way
from compressa.errors import CompressaError, StateError
from compressa.overlap.arrivals import Gradient
from compressa.overlap.opening import Options, open_overlap, trained
from compressa.overlap.reducer import Reducer
from compressa.overlap.steps import Steps
from compressa.overlap.uses import Uses

_BUFFERS_AT_ONCE_BYTES = 25 << 20
_WAYS: Final[Mapping[bool | str, Sequence[Way]]] = {
    True: ("deferred",),
    False: ("at once",),
    "auto": WAYS,
}


class OverlappedDataParallel(nn.Module):
    """Trains a module on all ranks; the next forward pass waits for each parameter at its use.

    In place of `DistributedDataParallel` and `register_comm_hook`, with any optimizer whose step
    is per parameter. Gradients leave as soon as backward has them. `optimizer.step()` notes the
    hyper-parameters and returns; a parameter is updated, by the optimizer's own step, when its
    gradient has come, at the latest where something first reads the parameter. So what the first
    layers need may go first (`schedule.policy = "priority"`), and the rest has until it is used.

    Whatever reads parameters or gradients gets what it would get without overlap: `state_dict`,
    a forward pass through part of the module, another optimizer. What needs all gradients
    (`clip_grad_norm_`, a `GradScaler`) waits for all; `overlap_ended` counts such steps. Not
    seen are reads of tensors that share memory with a parameter since before the step, of
    `optimizer.state`, and by C++ code that is given a parameter outside of a forward pass: call
    `flush` before. A module that is to be compiled must be so before it is wrapped; it has all its
    parameters when a forward pass begins.

    Args:
        module: On its device. What is frozen must be so already.
        optimizer: Of the module's parameters; its `step` and `zero_grad` are taken over.
        config: Path of a TOML file, a mapping, or a `Config`.
        process_group: Who takes part; all ranks unless given.
        broadcast_buffers: Whether rank 0's buffers go to all before a forward pass.
        init_sync: Whether rank 0's parameters and buffers go to all now.
        find_unused_parameters: Whether a backward pass may leave parameters out. Their `p.grad` is
            there when it ends, and is read as the mean over the ranks. Those that no rank has
            reached are not updated.
        scaler: The `GradScaler`, if losses are scaled, so that residuals are kept unscaled.
        clip_each: Norm to which each parameter's gradient is cut, by itself, before its update.
        overlap: Whether steps are deferred; without, `optimizer.step()` waits, and the bits are the
            same. "auto": a few steps are done both ways, and those that follow in the way that
            takes less time, as `handle.stats().overlap` tells.
        debug: Raise where user code reads a parameter outside of a forward pass while its update is
            due, which ends the overlap; and do the first steps both ways, to see that the
            optimizer's step is per parameter.

    Attributes:
        module: As given.
        handle: For statistics, checkpoints and switches, as `register_comm_hook` returns it.

    Raises:
        ConfigError: The configuration is wrong, or the ranks differ; on every rank.
        StateError: There is no process group, or the optimizer's step is not per parameter.
        BackendUnavailable: The configured device is missing.

    Example:
        >>> model = OverlappedDataParallel(net, optimizer, "compressa.toml")  # doctest: +SKIP
        >>> for x, y in batches:                                              # doctest: +SKIP
        ...     optimizer.zero_grad()
        ...     loss(model(x), y).backward()
        ...     optimizer.step()
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: Source,
        *,
        process_group: dist.ProcessGroup | None = None,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        find_unused_parameters: bool = False,
        scaler: Any = None,
        clip_each: float | None = None,
        overlap: bool | Literal["auto"] = "auto",
        debug: bool = False,
    ) -> None:
        super().__init__()
        options = Options(
            broadcast_buffers, init_sync, find_unused_parameters, clip_each, overlap, debug
        )
        self.handle = open_overlap(module, optimizer, config, process_group, options)
        self.handle.attach(self, self._quiesce)
        self.module = module
        self.optimizer = optimizer
        self.process_group = self.handle.group
        self.require_backward_grad_sync = True
        self._options = options
        self._buffers_due = True
        self._closed = False
        self.handle.engine.planning.choose(*_WAYS[overlap], joins=True)
        parameters = trained(module)
        self._reducer = Reducer(
            self.handle,
            parameters,
            find_unused=find_unused_parameters,
            scaler=scaler,
            read=self._gradients_read,
        )
        self._uses = Uses(module, parameters, self._parameters_read)
        self._steps = Steps(optimizer, self.handle, self._reducer, self._uses, options)
        self._updates = self._steps.updates
        # None are put on the module, which the user may pickle: lazy reads are enough.
        self._hooks = [
            optimizer.register_state_dict_pre_hook(lambda _: self.flush()),
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.flush()),
        ]

    @_disable_dynamo
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module; wait for each parameter where it is first used.

        Raises:
            PeerLost: A rank was lost since the last step.
            CompressaError: The engine has failed otherwise.
        """
        self.handle.check()
        trains = torch.is_grad_enabled()
        self._begin_forward(trains)
        if not trains:
            return self.module(*inputs, **kwargs)
        with self._uses.forward(self._updates.due) as watched:
            output = self.module(*inputs, **kwargs)
        if watched:
            self.handle.engine.planning.forward(self._uses.need_s, self._uses.forward_s)
        self.flush()  # what this pass did not use must not be due when backward begins
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Have gradients of forward passes meanwhile stay local, and add up in `p.grad`.

        The first forward pass afterwards has its gradients combined with them.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def flush(self) -> None:
        """Do all updates that are due, which waits for their gradients.

        Raises:
            CompressaError: The engine has failed.
        """
        self._updates.flush()

    def train(self, mode: bool = True) -> OverlappedDataParallel:
        """Set the mode; before evaluation, all due updates are done."""
        if not mode and hasattr(self, "_updates"):
            self.flush()
        super().train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's state, after all due updates."""
        self.flush()
        return super().state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the module's parameters, after all due updates."""
        self.flush()
        return super().named_parameters(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters; those of updates that are due are kept for these.

        Args:
            set_to_none: Whether `p.grad` becomes None, and not zeros.
        """
        self._steps.keep_due(set_to_none)
        self.module.zero_grad(set_to_none)

    @property
    def overlap_ended(self) -> Mapping[str, int]:
        """Number of steps without overlap, by reason."""
        return dict(self._steps.ended)

    @property
    def need_s(self) -> Mapping[str, float]:
        """By parameter name, in the order of first use in a forward pass: seconds from its start.

        Waits for updates do not count. Empty before the first forward pass.
        """
        return dict(sorted(self._uses.need_s.items(), key=lambda item: item[1]))

    def close(self) -> None:
        """Do what is due, give the optimizer and the module back, and end all threads.

        After a failure of the engine, what is due is given up.

        Raises:
            TransportError: As `Handle.close`.
        """
        if self._closed:
            return
        self._closed = True
        try:
            with contextlib.suppress(CompressaError):
                self.handle.check()
                self.flush()
        finally:
            self._steps.close()
            for hook in self._hooks:
                hook.remove()
            self._reducer.close()
            self.handle.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise StateError(
            "an OverlappedDataParallel has threads, and can not be copied; copy its module"
        )

    def __reduce__(self) -> NoReturn:
        raise StateError(
            "an OverlappedDataParallel has threads, and can not be pickled; save its module, or "
            "the state_dict of that"
        )

    def _quiesce(self) -> None:
        """Wait for all that is under way."""
        self.flush()
        self._reducer.complete()
        self._reducer.settle(self._reducer.current.values())

    # Forward

    def _begin_forward(self, trains: bool) -> None:
        if trains:
            self.handle.integrity.settle(self.handle.next_step, self._quiesce)
        if trains and self.require_backward_grad_sync:
            self._reducer.expect()
            self.handle.engine.tracer.begin_step(self.handle.next_step)
        elif trains:
            self._reducer.stay_local()
        else:
            self.flush()
        compiled = self._uses.compiled()
        for gradient in list(self._updates.due.values()):
            if not self._uses.seen(gradient.name) or id(gradient.parameter) in compiled:
                self._updates.until(gradient)
        self._sync_buffers(trains)

    def _sync_buffers(self, trains: bool) -> None:
        """As DistributedDataParallel does: after a pass without synchronisation there is none."""
        due, self._buffers_due = self._buffers_due, trains and self.require_backward_grad_sync
        if not due or not self._options.broadcast_buffers or self.process_group.size() == 1:
            return
        buffers = [buffer.detach() for buffer in self._uses.buffers()]
        if buffers:
            _broadcast_coalesced(self.process_group, buffers, _BUFFERS_AT_ONCE_BYTES, 0)
            self.handle.integrity.keep(self.handle.next_step, dict(self.module.named_buffers()))

    def _parameters_read(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lazy parameters are wanted."""
        if not tensors:
            self.flush()
            self._uses.stop_watching()
        for tensor in tensors:
            gradient = self._updates.due.get(id(tensor))
            if gradient is not None:
                self._check_read(gradient)
                with self._uses.stalled():
                    self._updates.until(gradient)
            self._uses.note(tensor)

    def _check_read(self, gradient: Gradient) -> None:
        if self._options.debug and not self._uses.under_way:
            raise StateError(
                f"{gradient.name!r} is read before its update, outside of a forward pass of "
                "OverlappedDataParallel, which ends the overlap; call its flush() first if that "
                "is meant"
            )

    # Backward and step

    def _gradients_read(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lazy gradients are wanted."""
        wanted = set(map(id, tensors))
        if self._reducer.placed(wanted):
            self._reducer.complete()
        current = self._reducer.current.values()
        for gradient in [*current, *self._updates.due.values()]:
            if gradient.over or (wanted and id(gradient.values) not in wanted):
                continue
            if gradient.settings is not None:
                self._updates.until(gradient)
                continue
            self._reducer.reads += 1
            self._reducer.complete()
            self._reducer.settle([gradient])
