"""FlatHook: what FSDP1 calls in place of its own reduce-scatter.

FSDP1 calls a hook with a unit's gradient and the slice of it that this rank owns, and does not say
whose they are. So the first call of all, which opens the engine, finds its unit by what FSDP1 is
doing, and gives each unit a hook of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from compressa.config import Config, Source, load_config
from compressa.errors import CompressaError, ConfigError, StateError
from compressa.integrations.fsdp.apply import handle_of, open_shards
from compressa.integrations.fsdp.flat import due, sharding_of_flat, trained
from compressa.integrations.fsdp.groups import Group
from compressa.integrations.fsdp.handle import FSDPHandle
from compressa.integrations.fsdp.planning import Plan, plan_for
from compressa.integrations.fsdp.shards import Shards


class FlatHook:
    """Reduces the gradients of one unit of FSDP1.

    Args:
        caller: The function that the user called, which errors name.
        group: The unit.
        shards: Does it.
    """

    def __init__(self, caller: str, group: Group, shards: Shards) -> None:
        self._caller, self._group, self._shards = caller, group, shards
        self._trained = trained(group.inner)
        self._weight = 1.0 / group.inner.world_size

    def reduce(self, gradient: torch.Tensor, shard: torch.Tensor | None) -> None:
        """Fill this rank's shard with the mean, and wait for it; on a GPU for it to be enqueued.

        Args:
            gradient: Of all parameters, padded.
            shard: The slice that this rank owns; None in a world of one, which owns the gradient.

        Raises:
            CompressaError: A rank is lost or late, or the unit is not what it was.
        """
        self._shards.check(self._changed(gradient))
        out = gradient if shard is None else shard.zero_()  # what is no parameter's counts in norms
        self._shards.reduce_scatter(self._group.number, gradient, out, self._weight)

    def _changed(self, gradient: torch.Tensor) -> StateError | None:
        first = self._group.inner.flat_param._fqns[0]
        if trained(self._group.inner) != self._trained:
            return StateError(
                f"{self._caller}: a parameter of the unit of {first!r} was frozen or unfrozen "
                "since its first gradient; wrap the network anew, and register a new pair"
            )
        dtype = self._group.reduced[0].parameter.dtype
        if gradient.dtype != dtype:
            return StateError(
                f"{self._caller}: the gradient of the unit of {first!r} is of {gradient.dtype} and "
                f"was of {dtype} at first; keep to one MixedPrecision"
            )
        return None


def reduce_flat(hook: FlatHook, gradient: torch.Tensor, shard: torch.Tensor | None = None) -> None:
    """The function that FSDP1 calls with a gradient, and with the shard that it is to fill.

    Args:
        hook: Of the unit; registered as the state.
        gradient: See `FlatHook.reduce`.
        shard: See `FlatHook.reduce`.
    """
    hook.reduce(gradient, shard)


def take_over(
    caller: str,
    root: FullyShardedDataParallel,
    config: Source,
    scaler: Any,
    resumed: str | Path | None,
    gradient: torch.Tensor,
) -> tuple[FSDPHandle, FlatHook]:
    """Have a model's gradients be reduced from now on. Collective.

    Args:
        caller: The function that the user called, which errors name.
        root: The outermost unit, which has begun to hand over gradients.
        config: Source of the configuration.
        scaler: The `GradScaler`, if the user named one.
        resumed: Checkpoint of residuals to begin with, if there is one.
        gradient: The first.

    Returns:
        The handle, and the hook that the gradient is for.

    Raises:
        CompressaError: As `apply_to_fsdp`.
    """
    sharding = sharding_of_flat(caller, root)
    plan, failure, first = Plan(), None, 0
    try:
        plan = plan_for(_followed(caller, config, scaler), sharding)
        first = due(caller, sharding.groups, gradient).number
    except CompressaError as error:
        failure = error
    shards = open_shards(plan, sharding, failure)
    assert shards is not None  # a gradient has come, so something is trained
    handle = handle_of(sharding, shards, None)
    if resumed is not None:
        with shards.session.closed_on_error():
            handle.load(resumed)
    hooks = [FlatHook(caller, group, shards) for group in sharding.groups]
    for group, hook in zip(sharding.groups, hooks, strict=True):
        group.module._comm_hook, group.module._comm_hook_state = reduce_flat, hook
    return handle, hooks[first]


def _followed(caller: str, source: Source, scaler: Any) -> Config:
    """Load a configuration.

    Raises:
        ConfigError: It is wrong, or asks for what no hook of FSDP1 can do.
        StateError: There is a scaler.
    """
    config = load_config(source)
    if config.fsdp.weights.name != "none":
        raise ConfigError(
            "fsdp.weights: FSDP1 hands its hook gradients only; leave it out, or shard the model "
            "by torch.distributed.fsdp.fully_shard, and call compressa.apply_to_fsdp"
        )
    if config.fsdp.gradients not in ("auto", "shards"):
        raise ConfigError(
            f'fsdp.gradients = "{config.fsdp.gradients}": FSDP1 takes no hook where there are '
            'replicas; use "shards", or shard the model by torch.distributed.fsdp.fully_shard over '
            "a mesh of two dimensions, and call compressa.apply_to_fsdp"
        )
    if scaler is not None:
        raise StateError(
            f"{caller}: loss scaling is not followed with FullyShardedDataParallel; leave scaler "
            "out, and use bfloat16 for mixed precision"
        )
    return config
