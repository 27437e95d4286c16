"""open_engine: from named tensors and a configuration to a running engine, for any client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from compressa.compressor import Compressor
from compressa.config import Config, Source, assign, load_config, parameter_infos
from compressa.config.strategies import check_followed
from compressa.engine.device_stream import DeviceStream, device_stream_of
from compressa.engine.opening import start_engine
from compressa.engine.start.process_groups import group_or_world
from compressa.errors import BackendUnavailable, CompressaError, ConfigError
from compressa.hooks.handle import Handle
from compressa.hooks.refusals import check_dense, check_dtypes
from compressa.hooks.replicas import fault_of
from compressa.parameters import ParameterInfo, as_real
from compressa.tracing import path_of

Tensors = nn.Module | Mapping[str, torch.Tensor]

_CALLER = "compressa.open_engine"


def open_engine(
    config: Source, tensors: Tensors, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """Have tensors of all ranks be averaged, compressed, step after step. Collective.

    For whatever is neither DistributedDataParallel nor `OverlappedDataParallel`: strategies that
    average parameters, optimizers that average momenta, wrappers with gradients of their own. In
    each step every tensor is submitted once, alone or with others and in any order; what is left
    unsent is kept by name and sent in later steps.

    Args:
        config: Path of a TOML file, a mapping, or a `Config`; the same on every rank.
        tensors: What will be submitted: a module, for its trainable parameters, or dense tensors by
            name. Names, shapes, dtypes (float16, bfloat16, float32, float64) and their order must
            be the same on every rank, and all tensors on one device; values are not looked at. A
            complex tensor counts as `torch.view_as_real` of it, and is submitted so.
        group: Who takes part; all ranks unless given.

    Returns:
        A handle, to be closed, or used in a `with` statement: `submit` and `wait`, `stats`, `save`
        and `load`, `switch`, `trace`, `reform`.

    Raises:
        ConfigError: The configuration or a tensor is wrong, or the ranks differ; on every rank.
        StateError: There is no process group, or an embedding of the module has sparse gradients.
        BackendUnavailable: The configured device is missing, or a tensor is elsewhere.
        TransportError: A rank is lost, or does not come.

    Example:
        >>> with compressa.open_engine("compressa.toml", momenta) as engine:  # doctest: +SKIP
        ...     for _ in range(steps):
        ...         engine.wait([engine.submit(momenta)])  # now the mean over all ranks
    """
    return open_handle(_CALLER, config, tensors, group_or_world(group, _CALLER))


def open_handle(
    caller: str,
    source: Source,
    tensors: Tensors,
    group: dist.ProcessGroup,
    *,
    policy: str | None = None,
    strategies: Sequence[str] = (),
    fragments: Mapping[str, int] | None = None,
    exact: Mapping[str, int] | None = None,
    sparse: bool = False,
    check: Callable[[Config], None] = lambda config: None,
) -> Handle:
    """Open an engine as `open_engine` does, for a client of this package.

    Args:
        caller: The function that the user called, which errors name.
        source: Of the configuration.
        tensors: As `open_engine` takes them.
        group: Who takes part.
        policy: `schedule.policy` where the source does not say it; None for the usual one.
        strategies: Values of `strategy.name` that the client follows; it may be left out, too.
        fragments: By name, which tensors are submitted and waited for together; None if all are.
        exact: By name, how many float32 values are submitted besides, with the last fragment; never
            compressed, and first in the order of parameters.
        sparse: Whether a module's gradients may be sparse, since it is not they that are submitted.
        check: Raises a CompressaError if this rank can not take part after all, of which the others
            are told.
    """

    def check_all(config: Config) -> None:
        check_followed(config.strategy, caller, strategies)
        if isinstance(tensors, nn.Module) and not sparse:
            check_dense(tensors)
        check(config)

    config, infos, compressors, device_stream, failure = _load(source, tensors, policy, check_all)
    fragments = fragments or {}
    infos = tuple(replace(p, fragment=fragments.get(p.name, 0)) for p in infos)
    for name, elems in (exact or {}).items():
        last = max(fragments.values(), default=0)
        own = ParameterInfo(0, name, (elems,), fragment=last, exact=True)
        infos = (own, *(replace(p, index=p.index + 1) for p in infos))
        compressors |= assign(config, infos[:1])
    engine = start_engine(
        config,
        group,
        infos,
        compressors,
        device_stream=device_stream,
        failure=failure,
        caller=caller,
    )
    with engine.session.closed_on_error():
        return Handle(engine, group)


def _load(
    source: Source, tensors: Tensors, policy: str | None, check: Callable[[Config], None]
) -> tuple[
    Config, tuple[ParameterInfo, ...], dict[str, Compressor], DeviceStream, CompressaError | None
]:
    """Load a configuration for tensors; a failure is kept until the other ranks have heard of it.

    Returns:
        The configuration, what is known of the tensors, compressors by name, where the tensors
        are, and why something failed, if it did.
    """
    config, infos = Config(), tuple[ParameterInfo, ...]()
    try:
        infos = _infos(tensors)
        check_dtypes(infos)
        config = load_config(source, policy=policy)
        if config.trace.path is not None:
            path_of(config.trace.path)  # where nothing can be written, nothing begins
        device = _device(config, _values(tensors))
        device_stream = device_stream_of(device, graphs=config.engine.cuda_graphs)
        compressors = assign(config, infos)
        check(config)
        return config, infos, compressors, device_stream, None
    except CompressaError as error:
        return config, infos, {}, DeviceStream(), error


def _infos(tensors: Tensors) -> tuple[ParameterInfo, ...]:
    if isinstance(tensors, nn.Module):
        return parameter_infos(tensors)
    for name, tensor in tensors.items():
        wrong = fault_of(tensor)
        if wrong:
            raise ConfigError(f"{name!r} {wrong}; {_CALLER} takes dense tensors")
    real = {name: as_real(tensor) for name, tensor in tensors.items()}
    return tuple(
        ParameterInfo(index, name, tuple(tensor.shape), tensor.dtype)
        for index, (name, tensor) in enumerate(real.items())
    )


def _values(tensors: Tensors) -> list[torch.Tensor]:
    if isinstance(tensors, nn.Module):
        return [p for p in tensors.parameters() if p.requires_grad]
    return list(tensors.values())


def _device(config: Config, tensors: Iterable[torch.Tensor]) -> torch.device:
    """Return where the tensors are.

    Raises:
        BackendUnavailable: There is no such device, or they are not on it, or on several.
    """
    wanted = config.engine.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            'engine.device = "cuda", but torch sees no CUDA device here; install a CUDA '
            'build of torch on a machine with a GPU, or set engine.device = "cpu"'
        )
    devices = {tensor.device for tensor in tensors}
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
