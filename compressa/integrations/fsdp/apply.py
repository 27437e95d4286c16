"""apply_to_fsdp: from a sharded model and a configuration to compressed collectives."""

from __future__ import annotations

import weakref
from dataclasses import replace

from torch import nn

from compressa.config import Source
from compressa.engine.opening import open_session, start_engine
from compressa.errors import CompressaError
from compressa.hooks.handle import Handle
from compressa.integrations.fsdp.building import Builder
from compressa.integrations.fsdp.comms import CompressedAllGather, CompressedReduceScatter
from compressa.integrations.fsdp.groups import Sharding, sharding_of, without_replicas
from compressa.integrations.fsdp.handle import FSDPHandle
from compressa.integrations.fsdp.planning import Plan, plan_for
from compressa.integrations.fsdp.replicas import ReplicaHook
from compressa.integrations.fsdp.shards import Shards
from compressa.parameters import ParameterInfo

_handles: weakref.WeakKeyDictionary[nn.Module, FSDPHandle] = weakref.WeakKeyDictionary()
"""The threads of a handle that nobody keeps are needed for as long as the model."""


def apply_to_fsdp(model: nn.Module, config: Source) -> FSDPHandle:
    """Compress what FSDP2 brings from rank to rank, from now on. Collective over the model's ranks.

    `fsdp.gradients` says between whom gradients are compressed: between the shards of a model, as
    it is usual without replicas, between the replicas of HSDP, as it is usual with them, or both.
    `fsdp.weights` compresses the weights that shards bring each other before they compute.

    Args:
        model: To which `torch.distributed.fsdp.fully_shard` was applied, last to itself; not yet
            trained, and not compressed already. Or a compiled module around it.
        config: Path of a TOML file, a mapping, or a `Config`.

    Returns:
        A handle for statistics and checkpoints of residuals.

    Raises:
        ConfigError: The configuration is wrong, asks for what shards can not do, or differs between
            ranks; on every rank.
        StateError: The model is not sharded by FSDP2, or in a way that can not be followed.
        BackendUnavailable: The configured device is missing.
        TransportError: A rank is lost, or does not come.

    Example:
        >>> fully_shard(model)                                          # doctest: +SKIP
        >>> handle = compressa.apply_to_fsdp(model, "compressa.toml")   # doctest: +SKIP
    """
    sharding = sharding_of(model)
    plan, failure, shards = Plan(), None, None
    try:
        plan = plan_for(config, sharding)
    except CompressaError as error:
        failure = error
    try:
        shards = open_shards(plan, sharding, failure)
    except CompressaError as error:  # other replicas hear of it from this rank
        failure = error
    try:
        replicas = _open_replicas(plan, sharding, failure)
        if failure is not None:
            raise failure
    except BaseException:
        if shards is not None:
            shards.close()
        raise
    _install(plan, sharding, shards, replicas)
    return handle_of(sharding, shards, replicas)


def handle_of(sharding: Sharding, shards: Shards | None, replicas: Handle | None) -> FSDPHandle:
    """Return a handle that lives as long as the model.

    Args:
        sharding: Of the model.
        shards: As `open_shards` returned it.
        replicas: Averages over replicas, if anything does.
    """
    handle = FSDPHandle(shards, replicas, sharding)
    _handles[sharding.groups[0].module] = handle
    return handle


def open_shards(plan: Plan, sharding: Sharding, failure: CompressaError | None) -> Shards | None:
    """Open what compresses between shards; None if nothing does. Collective.

    The ranks meet in any case, so that a failure on one of them is told to all.

    Args:
        plan: What is compressed.
        sharding: Of the model.
        failure: Why this rank can not take part, if it can not.

    Raises:
        CompressaError: As `apply_to_fsdp`.
    """
    session = open_session(
        plan.config,
        sharding.shards,
        sharding.reduced,
        None,
        device_stream=plan.device_stream,
        failure=failure,
        caller=sharding.caller,
    )
    with session.closed_on_error():
        if plan.codings or plan.weights:
            return Builder(plan, sharding, session).build()
    session.close()
    return None


def _open_replicas(plan: Plan, sharding: Sharding, failure: CompressaError | None) -> Handle | None:
    """Open what averages over replicas; None if nothing does, or this rank owns nothing.

    The ranks meet in any case, as for shards.
    """
    if sharding.replicas is None:
        return None
    infos = _owned(sharding)
    if failure is not None or not (plan.compressors and infos):
        settings = (plan.config, sharding.replicas, infos)
        open_session(*settings, failure=failure, caller=sharding.caller).close()
        return None
    # Not by `open_engine`: it would choose a compressor by the shape of a slice, where rules go by
    # the whole parameter, and its dtype by the weight's, where FSDP2 reduces in one of its own.
    engine = start_engine(
        plan.config,
        sharding.replicas,
        infos,
        {info.name: plan.compressors[info.name] for info in infos},
        device_stream=plan.device_stream,
        caller=sharding.caller,
    )
    with engine.session.closed_on_error():
        return Handle(engine, sharding.replicas)


def _owned(sharding: Sharding) -> tuple[ParameterInfo, ...]:
    """Return what this rank owns of trainable parameters, as parameters of their own.

    Each group is a fragment: what it averages waits for no other group.
    """
    rank = sharding.shards.rank()
    owned = [
        replace(one.parameter, shape=one.local_shape(rank), fragment=group.number)
        for group in sharding.groups
        for one in group.reduced
        if one.of(rank).elems
    ]
    owned.sort(key=lambda parameter: parameter.index)
    return tuple(replace(parameter, index=index) for index, parameter in enumerate(owned))


def _install(
    plan: Plan, sharding: Sharding, shards: Shards | None, replicas: Handle | None
) -> None:
    """Have FSDP2 call what has been opened."""
    for group in sharding.groups:
        if shards is not None and plan.codings and group.reduced:
            group.module.set_custom_reduce_scatter(CompressedReduceScatter(group, shards))
        if shards is not None and plan.weights:
            group.module.set_custom_all_gather(CompressedAllGather(group, shards))
        if plan.compressors and group.reduced:
            without_replicas(group.inner)
            rank = sharding.shards.rank()
            counted = sharding.counted(sharding.replicas) if sharding.replicas else ""
            group.module.set_all_reduce_hook(ReplicaHook(group, rank, replicas, counted))
