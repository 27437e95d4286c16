"""Opening: all ranks agree on what they are about to train, and start from the same values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from compressa.compressor import Compressor
from compressa.config import (
    Config,
    Source,
    assign,
    first_difference,
    load_config,
    parameter_infos,
)
from compressa.engine import startup
from compressa.engine.engine import Engine
from compressa.engine.opening import close_engine, open_engine
from compressa.errors import CompressaError, ConfigError, StateError
from compressa.hooks import broadcast
from compressa.hooks.register import load_for
from compressa.overlap.reducer import USED
from compressa.overlap.takeover import fault_of
from compressa.parameters import ParameterInfo

_CALLER = "OverlappedDataParallel"
_POLICY = "auto"  # the hook's is fifo: it must have everything before backward ends


@dataclass(frozen=True)
class Options:
    """What `OverlappedDataParallel` is told beside its configuration."""

    broadcast_buffers: bool
    init_sync: bool
    find_unused_parameters: bool
    clip_each: float | None
    overlap: bool
    debug: bool


@dataclass(frozen=True)
class Opened:
    """What it is made of.

    Attributes:
        ranks: Who takes part.
        engine: Combines gradients.
        config: Settings.
        groups: Process groups that were made for the engine.
        parameters: What is trained, by name.
    """

    ranks: dist.ProcessGroup
    engine: Engine
    config: Config
    groups: list[dist.ProcessGroup]
    parameters: dict[str, nn.Parameter]


def open_overlap(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Source,
    group: dist.ProcessGroup | None,
    options: Options,
) -> Opened:
    """Start the engine, and bring rank 0's parameters and buffers to all. Collective.

    Raises:
        CompressaError: As `OverlappedDataParallel`.
    """
    ranks = _group_or_world(group)
    infos = parameter_infos(module)
    config, compressors, lane, failure = load_for(source, module, infos, _POLICY)
    settings = config or Config()
    failure = failure or _refusal(optimizer, settings)
    if options.find_unused_parameters:
        infos, compressors = _with_flags(infos, compressors)
    engine, groups = open_engine(settings, compressors, infos, lane, ranks, failure, caller=_CALLER)
    with startup.opening(engine.control, partial(close_engine, engine, groups)):
        named = {n: p for n, p in module.named_parameters() if p.requires_grad and p.numel()}
        _agree(engine, {**asdict(options), **_described(optimizer, named)}, settings)
        if options.init_sync:
            broadcast(module, group=ranks, config=settings)
    return Opened(ranks, engine, settings, groups, named)


def _group_or_world(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    ranks = group
    if ranks is None and dist.is_available() and dist.is_initialized():
        ranks = dist.group.WORLD
    if not isinstance(ranks, dist.ProcessGroup):
        raise StateError(
            f"{_CALLER} needs a process group that this rank is in; call "
            "torch.distributed.init_process_group first, or give a group"
        )
    return ranks


def _refusal(optimizer: torch.optim.Optimizer, config: Config) -> CompressaError | None:
    fault = fault_of(optimizer)
    if not fault and config.engine.recover:
        fault = (
            f"engine.recover = true, but {_CALLER} can not take back a step whose updates are "
            "partly done; train with DistributedDataParallel and compressa.register_comm_hook, or "
            "go on from checkpoints"
        )
    return StateError(fault) if fault else None


def _with_flags(
    infos: tuple[ParameterInfo, ...], compressors: dict[str, Compressor]
) -> tuple[tuple[ParameterInfo, ...], dict[str, Compressor]]:
    """Add the flags as the first parameter: the last in backward, as they are."""
    flags = ParameterInfo(0, USED, (sum(p.elems > 0 for p in infos),))
    moved = [ParameterInfo(p.index + 1, p.name, p.shape, p.dtype, p.role) for p in infos]
    plain = assign(load_config({"compressor": {"name": "none"}}), [flags])
    return (flags, *moved), {**plain, **compressors}


def _described(optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter]) -> dict[str, Any]:
    names = {id(p): name for name, p in named.items()}
    return {
        "optimizer": type(optimizer).__qualname__,
        "groups": [[names.get(id(p)) for p in g["params"]] for g in optimizer.param_groups],
    }


def _agree(engine: Engine, own: dict[str, Any], config: Config) -> None:
    """Compare what the ranks were told.

    Raises:
        ConfigError: They differ; on every rank.
    """
    if engine.control is None:
        return
    data = json.dumps(own).encode()
    answers = engine.control.all_gather(data, "overlap options", config.exchange.start_wait_s)
    told = [json.loads(answer) for answer in answers]
    for rank, other in enumerate(told):
        difference = first_difference(told[0], other)
        if difference is not None:
            path, first, value = difference
            raise ConfigError(
                f"the ranks differ in {_CALLER}'s {path}: rank 0 has {first!r}, rank {rank} has "
                f"{value!r}; give all ranks the same"
            )
