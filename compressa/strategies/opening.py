"""attach: from a model, an optimizer and a configuration to the strategy that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from compressa.config import Source, load_config
from compressa.engine.start.process_groups import group_or_world
from compressa.errors import CompressaError, StateError
from compressa.hooks.opening import open_handle
from compressa.optim.base import CompressedOptimizer
from compressa.strategies.ad_psgd import open_ad_psgd
from compressa.strategies.base import Strategy, Training
from compressa.strategies.bounded import open_async, open_bounded, open_central
from compressa.strategies.diloco import open_diloco
from compressa.strategies.easgd import open_easgd
from compressa.strategies.every_step import open_hook, open_overlapped
from compressa.strategies.gossip import open_gossip
from compressa.strategies.hogwild import open_hogwild
from compressa.strategies.local_sgd import open_local_sgd, open_post_local_sgd
from compressa.strategies.sgp import open_sgp

_CALLER = "compressa.attach"

OPENERS: dict[str, Callable[[Training], Strategy]] = {
    "hook": open_hook,
    "overlapped": open_overlapped,
    "local_sgd": open_local_sgd,
    "post_local_sgd": open_post_local_sgd,
    "diloco": open_diloco,
    "easgd": open_easgd,
    "gossip": open_gossip,
    "sgp": open_sgp,
    "ad_psgd": open_ad_psgd,
    "hogwild": open_hogwild,
    "async": open_async,
    "bounded": open_bounded,
    "central": open_central,
}
"""By `strategy.name`, what makes it; collective."""

_USUAL = "hook"


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: Source,
    *,
    group: dist.ProcessGroup | None = None,
    scaler: Any = None,
) -> Strategy:
    """Train a model on all ranks by the strategy that the configuration names. Collective.

    Args:
        model: The network, the same on every rank but for its values, which will be rank 0's.
        optimizer: Of its parameters.
        config: Path of a TOML file, a mapping, or a `Config`; `[strategy]` says when ranks meet,
            and everything else how.
        group: Who takes part; all ranks unless given.
        scaler: The `GradScaler`, if losses are scaled; `step` then steps and updates it, too.

    Returns:
        The strategy. Call its `model` instead of the one that was given, and its `step` after each
        backward pass.

    Raises:
        ConfigError: The configuration, the model or the optimizer is wrong, or the ranks differ; on
            every rank.
        StateError: There is no process group, or the model or the optimizer is one that the
            strategy can not train.
        BackendUnavailable: The configured device is missing.
        TransportError: A rank is lost, or does not come.

    Example:
        >>> with compressa.attach(net, optimizer, "compressa.toml") as strategy:  # doctest: +SKIP
        ...     for x, y in batches:
        ...         optimizer.zero_grad()
        ...         loss(strategy.model(x), y).backward()
        ...         strategy.step()
        ...     strategy.sync()  # all ranks hold the same parameters
    """
    ranks = group_or_world(group, _CALLER)
    try:
        settings = load_config(config)
    except CompressaError:
        open_handle(_CALLER, config, model, ranks)  # tells the other ranks, and raises it
        raise
    if isinstance(optimizer, CompressedOptimizer):
        raise StateError(
            f"{_CALLER}: compressa.optim.{type(optimizer).__name__} does its ranks' communication "
            "in its own step; use it alone, without attach"
        )
    name = _USUAL if settings.strategy is None else settings.strategy.name
    training = Training(model, optimizer, config, settings, ranks, scaler, _CALLER)
    return OPENERS[name](training)
