"""broadcast: parameters from the ranks that hold them to those that do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

from compressa.config import Config, Source, load_config
from compressa.engine.device_stream import DeviceStream, device_stream_of
from compressa.engine.opening import open_session
from compressa.engine.replicas.broadcast_buckets import cut_into_buckets
from compressa.engine.replicas.broadcasting import Sizes, bring_buckets
from compressa.engine.start.process_groups import group_or_world
from compressa.errors import CompressaError, ConfigError

_CALLER = "compressa.broadcast"

Tensors = torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor]


def broadcast(
    tensors: Tensors,
    *,
    group: dist.ProcessGroup | None = None,
    sources: Sequence[int] = (0,),
    config: Source | None = None,
) -> None:
    """Have all ranks hold what the sources hold, bit by bit and in place. Collective.

    For initial parameters, in place of what DistributedDataParallel does when it is made
    (`init_sync=False`), and for ranks that join a training: those that have its state serve those
    that have not, each a share of them or of the bytes. All ranks compare names, shapes and dtypes
    before anything is sent, and what they hold afterwards by its checksum.

    What the optimizer and a handle keep is not part of a module. Name an optimizer's tensors in a
    mapping of their own; ranks that join begin with residuals of zero.

    Tensors on a GPU go by NCCL where `exchange.transport` says so, else through pinned memory in
    pieces, of which some cross the bus while others are on the wire. Beside the tensors themselves
    a rank needs some 100 MB at most.

    Args:
        tensors: A module, for its parameters and buffers; tensors by name; or tensors in an order.
            Of any dtypes and shapes, the same on every rank.
        group: Who takes part; all ranks unless given.
        sources: The ranks of the group that hold the values; all must hold the same.
        config: Path of a TOML file, a mapping, or a `Config`; `exchange` says how. The defaults
            unless given.

    Raises:
        ConfigError: The ranks differ in tensors, sources or configuration, with the first
            difference; or something given is wrong; on every rank.
        StateError: There is no process group, or the sources hold different values; what the other
            ranks hold then is of no use.
        TransportError: The values could not be brought to all.

    Example:
        >>> net.load_state_dict(state)                           # doctest: +SKIP
        >>> compressa.broadcast(net, sources=[0, 1])             # doctest: +SKIP
        >>> model = DistributedDataParallel(net, init_sync=False)  # doctest: +SKIP

        On ranks 0 and 1 of four, which have trained before; ranks 2 and 3 join them and only make
        `net`.
    """
    ranks = group_or_world(group, _CALLER)
    settings, device_stream, failure = Config(), DeviceStream(), None
    named: dict[str, torch.Tensor] = {}
    holders: list[int] = []
    try:
        holders = _checked(sources, ranks.size())
        named = _by_name(tensors)
        settings = load_config({} if config is None else config)
        device_stream = _device_stream(named, settings)
    except CompressaError as error:
        failure = error
    if ranks.size() == 1:
        if failure is not None:
            raise failure
        return
    sizes = Sizes.of(settings)
    elems = sizes.window_bytes // torch.float32.itemsize
    with open_session(
        settings,
        ranks,
        elems,
        sizes.threads,
        device_stream=device_stream,
        failure=failure,
        caller=_CALLER,
    ) as session:
        session.agree({"sources": holders, "tensors": _described(named)})
        buckets = cut_into_buckets(named, sizes.bucket_bytes)
        bring_buckets(session, buckets, holders, settings)


def _checked(sources: Sequence[int], size: int) -> list[int]:
    """Return the sources as plain numbers, which may come from an array."""
    chosen = list(map(int, sources))
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(size)):
        raise ConfigError(
            f"sources = {chosen} are not different ranks of a group of {size}; name those that "
            f"hold the values, from 0 to {size - 1}"
        )
    return chosen


def _by_name(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors without their gradients.

    Raises:
        ConfigError: Some of it is no tensor whose bytes could be sent.
    """
    if isinstance(tensors, torch.nn.Module):
        named = dict([*tensors.named_parameters(), *tensors.named_buffers()])
    elif isinstance(tensors, Mapping):
        named = {str(name): tensor for name, tensor in tensors.items()}
    elif isinstance(tensors, torch.Tensor):
        named = {"0": tensors}
    else:
        named = {str(index): tensor for index, tensor in enumerate(tensors)}
    for name, tensor in named.items():
        wrong = fault_of(tensor)
        if wrong:
            raise ConfigError(f"{name!r} {wrong}; {_CALLER} takes dense tensors")
    return {name: tensor.detach() for name, tensor in named.items()}


def fault_of(tensor: object) -> str:
    """Return why the bytes of something can not be brought to other ranks, or nothing."""
    if not isinstance(tensor, torch.Tensor):
        return f"is of type {type(tensor).__name__}"
    if is_lazy(tensor):
        return "has no shape yet: run a forward pass first"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"has the layout {tensor.layout} and the dtype {tensor.dtype}"
    if tensor.device.type == "meta":
        return "is on the device meta, and has no values: materialise it first"
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.numel() and any(size > 1 and not stride for size, stride in sizes):
        return "is expanded: several of its elements are one in memory"
    return ""


def _device_stream(named: Mapping[str, torch.Tensor], config: Config) -> DeviceStream:
    """Where buckets are: on a GPU if any tensor is, but for multicast, which leaves the host."""
    devices = [tensor.device for tensor in named.values() if tensor.is_cuda]
    if not devices or config.exchange.broadcast == "multicast":
        return DeviceStream()
    return device_stream_of(devices[0])


def _described(named: Mapping[str, torch.Tensor]) -> dict[str, dict[str, object]]:
    return {
        name: {"index": index, "shape": list(tensor.shape), "dtype": str(tensor.dtype)}
        for index, (name, tensor) in enumerate(named.items())
    }
