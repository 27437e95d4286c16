"""Refusals: what ranks that train by themselves can not be given."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compressa.config.strategies import DiLoCo
from compressa.errors import CompressaError, ConfigError, StateError
from compressa.overlap import OverlappedDataParallel
from compressa.strategies.base import Training


def check_local(training: Training, *, doubles: bool = False) -> None:
    """Refuse a model, an optimizer or settings with which ranks can not train by themselves.

    Args:
        training: What was given.
        doubles: Whether parameters may be of float64.

    Raises:
        StateError: The model averages gradients, or the optimizer is not its.
        ConfigError: A parameter has a dtype that an anchor can not have, or a setting does not fit.
    """
    found = _fault_of_model(training.model, doubles) or _fault_of_optimizer(training)
    if found is not None:
        raise found


def _fault_of_model(model: nn.Module, doubles: bool) -> CompressaError | None:
    if isinstance(model, DistributedDataParallel | OverlappedDataParallel):
        return StateError(
            f"compressa.attach: a {type(model).__name__} averages gradients in each step, and this "
            "strategy lets ranks train by themselves; hand over the network that it wraps"
        )
    if not any(p.requires_grad and p.numel() for p in model.parameters()):
        return StateError(
            "compressa.attach: the model has no parameter to train; thaw some "
            "(requires_grad_(True)) before"
        )
    for name, parameter in model.named_parameters():
        double = parameter.dtype in (torch.float64, torch.complex128)
        if parameter.requires_grad and double and not doubles:
            return ConfigError(
                f"the parameter {name!r} is made of {parameter.dtype} values, and what ranks agree "
                "on is kept in float32; convert it, or freeze it (requires_grad_(False))"
            )
    return None


def _fault_of_optimizer(training: Training) -> CompressaError | None:
    optimizer, strategy = training.optimizer, training.config.strategy
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in training.model.named_parameters():
        if parameter.requires_grad and id(parameter) not in held:
            return StateError(
                f"compressa.attach: the optimizer has no parameter {name!r} of the model; hand "
                "over the optimizer that trains it, or freeze it (requires_grad_(False))"
            )
    plain = isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] for group in optimizer.param_groups
    )
    if isinstance(strategy, DiLoCo) and plain:
        return ConfigError(
            'strategy.name = "diloco", but the inner optimizer is SGD without momentum, which '
            "keeps no state: outer steps were made for one that adapts, as AdamW; use such an "
            'optimizer, or strategy.name = "local_sgd"'
        )
    return None
