"""register_comm_hook: from a DDP model and a configuration to a running engine."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from compressa.compressor import Compressor
from compressa.config import Config, Source, assign, load_config, parameter_infos
from compressa.engine.lanes import Lane, lane_of
from compressa.engine.opening import open_engine
from compressa.errors import BackendUnavailable, CompressaError, StateError
from compressa.hooks.ddp import BeforeForward, DDPHook, Reference, ddp_hook
from compressa.hooks.handle import Handle
from compressa.hooks.refusals import check_dense, check_dtypes, check_inputs, check_reducer
from compressa.parameters import ParameterInfo
from compressa.tracing import place_of

_registered: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def register_comm_hook(
    model: DistributedDataParallel, config: Source, *, scaler: Any = None
) -> Handle:
    """Compress the gradients of a DDP model from now on. Collective over the model's ranks.

    A model that is copied or pickled leaves the hook behind: register it anew.

    Args:
        model: Wrapped, not yet trained with another hook.
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
        >>> model = DistributedDataParallel(net)                  # doctest: +SKIP
        >>> handle = register_comm_hook(model, "compressa.toml")  # doctest: +SKIP
    """
    _check_model(model)
    parameters = parameter_infos(model.module)
    loaded, compressors, lane, failure = load_for(config, model.module, parameters)
    settings = loaded or Config()
    failure = failure or _refusal(model)
    engine, groups = open_engine(
        settings, compressors, parameters, lane, model.process_group, failure
    )
    handle = Handle(engine, settings, groups, weakref.ref(model))
    _install(model, handle, scaler)
    return handle


def _check_model(model: DistributedDataParallel) -> None:
    if not isinstance(model, DistributedDataParallel):
        raise StateError(
            f"register_comm_hook takes a DistributedDataParallel, not {type(model).__name__}; "
            "wrap the network first"
        )
    # A model that was pickled with this hook, and read again, has none.
    others = [state for _, state in model._comm_hooks if not isinstance(state, Reference)]
    if model in _registered or others:
        owner = "a compressa" if model in _registered else "another"
        raise StateError(
            f"this model has {owner} hook already; DDP takes one hook in its life, so wrap the "
            "network in a new DistributedDataParallel first"
        )


def _refusal(model: DistributedDataParallel) -> StateError | None:
    try:
        check_reducer(model)
        check_inputs(model)
    except StateError as error:
        return error
    return None


def _install(model: DistributedDataParallel, handle: Handle, scaler: Any) -> None:
    engine = handle.engine
    names = {id(p): name for name, p in model.module.named_parameters() if p.requires_grad}
    hook = DDPHook(model, engine, handle, names, scaler)
    model.register_comm_hook(Reference(hook), ddp_hook)
    # After a failed backward, DDP's own forward would complain of an internal error.
    model.register_forward_pre_hook(BeforeForward(hook))
    _registered.add(model)


def load_for(
    source: Source,
    module: torch.nn.Module,
    parameters: Sequence[ParameterInfo],
    policy: str | None = None,
) -> tuple[Config | None, dict[str, Compressor], Lane, CompressaError | None]:
    """Load a configuration for a module.

    Args:
        source: Of the configuration.
        module: Whose gradients are combined.
        parameters: Of the module.
        policy: `schedule.policy` where the source does not say it; None for the usual one.

    Returns:
        The configuration, compressors by parameter name, where gradients will be, and, if
        something failed, why: to be kept until the other ranks have heard of it.
    """
    try:
        check_dtypes(parameters)
        config = load_config(source, policy=policy)
        check_dense(module)
        if config.trace.path is not None:
            place_of(config.trace.path)  # where nothing can be written, nothing begins
        lane = lane_of(_device(config, module))
        return config, assign(config, parameters), lane, None
    except CompressaError as error:
        return None, {}, Lane(), error


def _device(config: Config, module: torch.nn.Module) -> torch.device:
    """Return where the gradients will be.

    Raises:
        BackendUnavailable: There is no such device, or the parameters are not on it, or on several.
    """
    wanted = config.engine.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            'engine.device = "cuda", but torch sees no CUDA device here; install a CUDA '
            'build of torch on a machine with a GPU, or set engine.device = "cpu"'
        )
    devices = {p.device for p in module.parameters() if p.requires_grad}
    device = devices.pop() if devices else torch.device("cpu")
    if devices:
        found = ", ".join(sorted(map(str, {device, *devices})))
        raise BackendUnavailable(
            f"the model has parameters on several devices: {found}; a rank compresses on one, so "
            "move the whole model there before you wrap it, and start a rank for each GPU"
        )
    if wanted not in ("auto", device.type):
        raise BackendUnavailable(
            f'engine.device = "{wanted}", but the model is on {device}; gradients are compressed '
            f'where they are: move the model before you wrap it, or set engine.device = "auto"'
        )
    return device
