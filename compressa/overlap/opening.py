"""Opening: all ranks agree on what they are about to train, and start from the same values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compressa.config import Config, Source
from compressa.engine.start.process_groups import group_or_world
from compressa.errors import StateError
from compressa.hooks import Handle, broadcast
from compressa.hooks.opening import open_handle
from compressa.overlap.reducer import USED
from compressa.overlap.takeover import fault_of
from compressa.parameters import trained_parameters

_CALLER = "OverlappedDataParallel"
_POLICY = "auto"  # the hook's is fifo: it must have everything before backward ends


@dataclass(frozen=True)
class Options:
    """What `OverlappedDataParallel` is told beside its configuration."""

    broadcast_buffers: bool
    init_sync: bool
    find_unused_parameters: bool
    clip_each: float | None
    overlap: bool | Literal["auto"]
    debug: bool


def open_overlap(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Source,
    group: dist.ProcessGroup | None,
    options: Options,
) -> Handle:
    """Open an engine, and bring rank 0's parameters and buffers to all. Collective.

    Args:
        module: What is trained.
        optimizer: Of its parameters.
        source: Of the configuration.
        group: Who takes part; None for all ranks.
        options: Must be the same on every rank.

    Raises:
        CompressaError: As `OverlappedDataParallel`.
    """
    ranks, named = group_or_world(group, _CALLER), trained(module)
    handle = open_handle(
        _CALLER,
        source,
        module,
        ranks,
        policy=_POLICY,
        strategies=["overlapped"],
        exact={USED: len(named)} if options.find_unused_parameters else {},
        check=partial(_check, module, optimizer),
    )
    with handle.closed_on_error():
        told = {**asdict(options), **_described(optimizer, named)}
        handle.engine.session.agree(told, _CALLER)
        if options.init_sync:
            broadcast(module, group=ranks, config=handle.config)
    return handle


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return what is trained, by name: what has no elements is in no exchange."""
    return {name: p for name, p in trained_parameters(module).items() if p.numel()}


def _check(module: nn.Module, optimizer: torch.optim.Optimizer, config: Config) -> None:
    fault = fault_of(optimizer)
    if isinstance(module, DistributedDataParallel):
        fault = f"a DistributedDataParallel averages gradients already; give {_CALLER} its module"
    if not fault and config.engine.recover:
        fault = (
            f"engine.recover = true, but {_CALLER} can not take back a step whose updates are "
            "partly done; train with DistributedDataParallel and compressa.register_comm_hook, or "
            "go on from checkpoints"
        )
    if fault:
        raise StateError(fault)


def _described(optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter]) -> dict[str, Any]:
    names = {id(p): name for name, p in named.items()}
    return {
        "optimizer": type(optimizer).__qualname__,
        "groups": [[names.get(id(p)) for p in g["params"]] for g in optimizer.param_groups],
    }
