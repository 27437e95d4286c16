"""register_comm_hook: from a DDP model and a configuration to a running engine."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compressa.config import Source
from compressa.errors import StateError
from compressa.hooks.ddp import AfterForward, BeforeForward, DDPHook, HookState, Reference, ddp_hook
from compressa.hooks.first_bucket import FirstBucket
from compressa.hooks.handle import Handle
from compressa.hooks.opening import open_handle
from compressa.hooks.refusals import check_inputs, check_reducer
from compressa.parameters import trained_parameters

_CALLER = "register_comm_hook"
_HOLDERS = {"_orig_mod", "_forward_module"}  # of `torch.compile`, and of Fabric
_registered: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def register_comm_hook(model: nn.Module, config: Source, *, scaler: Any = None) -> Handle:
    """Compress the gradients of a DDP model from now on. Collective over the model's ranks.

    With `gradient_as_bucket_view=True` gradients leave as soon as backward has them, and not when
    DDP's bucket of 25 MiB is full. A model that is copied or pickled leaves the hook behind:
    register it anew.

    Args:
        model: A DistributedDataParallel that was not yet trained with another hook, or what
            `torch.compile` or Fabric has made of one.
        config: Path of a TOML file, a mapping, or a `Config`.
        scaler: The `GradScaler`, if losses are scaled, so that residuals are kept unscaled
            and a skipped step loses nothing.

    Returns:
        A handle for statistics and checkpoints.

    Raises:
        ConfigError: The configuration is wrong, or differs between ranks; on every rank.
        StateError: The model has a hook already, or asks for what no hook can do: sparse
            gradients, `model.join()`, or the reducer for compiled autograd. On another rank than
            the one that it is of, a ConfigError.
        BackendUnavailable: The configured device is missing.

    Example:
        >>> model = DistributedDataParallel(net, gradient_as_bucket_view=True)  # doctest: +SKIP
        >>> handle = register_comm_hook(model, "compressa.toml")                # doctest: +SKIP
    """
    wrapped = ddp_of(model)
    check_unregistered(wrapped)
    handle = open_for(_CALLER, wrapped, config)
    install(wrapped, handle, scaler)
    return handle


def ddp_of(
    model: nn.Module, caller: str = _CALLER, fix: str = "wrap the network first"
) -> DistributedDataParallel:
    """Return the DDP model that other wrappers hold.

    Args:
        model: That model, or what `torch.compile` or Fabric's `setup` has made of it.
        caller: The function that the user called, which the error names.
        fix: What to do if there is none.

    Raises:
        StateError: There is none.
    """
    inner = model
    while not isinstance(inner, DistributedDataParallel):
        # Wrappers pass other attributes on to what they hold; where that is they know themselves.
        held = getattr(inner, "_modules", {})
        if not held.keys() & _HOLDERS:
            kind = type(model).__name__
            if kind == "FullyShardedDataParallel":
                fix = "call model.register_comm_hook(*compressa.comm_hook(config))"
            raise StateError(f"{caller} takes a DistributedDataParallel, not {kind}; {fix}")
        inner = held[min(held.keys() & _HOLDERS)]
    return inner


def open_for(caller: str, model: DistributedDataParallel, config: Source) -> Handle:
    """Open an engine for the gradients of a DDP model. Collective.

    Args:
        caller: The function that the user called, which errors name.
        model: Whose gradients.
        config: Source of the configuration.

    Raises:
        CompressaError: As `register_comm_hook`.
    """
    return open_handle(
        caller,
        config,
        model.module,
        model.process_group,
        strategies=["hook"],
        check=lambda _: _check_combined_by_hook(model),
    )


def install(model: DistributedDataParallel, handle: Handle, scaler: Any) -> None:
    """Have an open engine combine the gradients of a DDP model from now on.

    Args:
        model: Wrapped, not yet trained, and without another hook.
        handle: Open for its parameters, over its process group.
        scaler: The `GradScaler`, if losses are scaled.
    """
    with handle.closed_on_error():
        hook = take_over(model, handle, scaler)
        model.register_comm_hook(Reference(hook), ddp_hook)
    hook.expect(FirstBucket(partial(_alive, weakref.ref(model))))


def take_over(model: DistributedDataParallel, handle: Handle, scaler: Any) -> DDPHook:
    """Return the hook that DDP's function for a model calls; the model holds it.

    Args:
        model: Wrapped; forward passes are watched from now on.
        handle: Open for its parameters, over its process group.
        scaler: The `GradScaler`, if losses are scaled.
    """
    handle.attach(model)
    hook = DDPHook(model, handle, trained_parameters(model.module), scaler)
    # After a failed backward, DDP's own forward would complain of an internal error.
    model.register_forward_pre_hook(BeforeForward(hook))
    if model.gradient_as_bucket_view:
        model.register_forward_hook(AfterForward(hook))
    _registered.add(model)
    return hook


def check_unregistered(model: DistributedDataParallel, own: object = None) -> None:
    """Refuse a model that has a hook.

    Args:
        model: Any.
        own: The state of a hook that it may have.

    Raises:
        StateError: It has one.
    """
    # A model that was pickled with a hook of ours, and read again, has none.
    others = [
        state
        for _, state in model._comm_hooks
        if state is not own and not (isinstance(state, HookState) and state.copied)
    ]
    if model in _registered or others:
        owner = "a compressa" if model in _registered else "another"
        raise StateError(
            f"this model has {owner} hook already; DDP takes one hook in its life, so wrap the "
            "network in a new DistributedDataParallel first"
        )


def _check_combined_by_hook(model: DistributedDataParallel) -> None:
    check_reducer(model)
    check_inputs(model)


def _alive(
    reference: weakref.ref[DistributedDataParallel],
) -> list[DistributedDataParallel] | None:
    model = reference()
    return None if model is None else [model]
