"""Refusals: what ranks that train by themselves can not be given."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compressa.config.strategy_sections import EASGD, SGP, DiLoCo
from compressa.errors import CompressaError, ConfigError, StateError
from compressa.overlap import OverlappedDataParallel
from compressa.overlap.opening import trained
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
    if found is None and training.config.engine.recover:
        found = _fault_of_device(training.model)
    strategy = training.config.strategy
    if found is None and isinstance(strategy, EASGD | SGP):
        found = _fault_of_small_shares(training.model, strategy.name)
    if found is not None:
        raise found


def check_host(training: Training) -> None:
    """Refuse a model on a device: what ranks exchange lies in the memory of hosts.

    Raises:
        StateError: A parameter or a buffer is elsewhere.
    """
    tensors = [*training.model.parameters(), *training.model.buffers()]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        name = training.config.strategy and training.config.strategy.name
        raise StateError(
            f'strategy.name = "{name}" works in the memory of hosts; move the model to the CPU, or '
            "choose another strategy"
        )


def check_memory(model: nn.Module, averaged: Mapping[str, torch.Tensor]) -> None:
    """Refuse parameters that are not those of when the strategy began.

    Args:
        model: What is trained.
        averaged: By name, the memory of what ranks average.

    Raises:
        StateError: There is another parameter now, or one lies elsewhere.
    """
    for name, parameter in trained(model).items():
        known = averaged.get(name)
        if known is None or known.data_ptr() != parameter.data_ptr():
            raise StateError(
                f"the parameter {name!r} was thawed, moved or replaced since compressa.attach, "
                "and ranks would not average it; close the strategy and attach the model anew"
            )


def _fault_of_model(model: nn.Module, doubles: bool) -> CompressaError | None:
    if isinstance(model, DistributedDataParallel | OverlappedDataParallel):
        return StateError(
            f"compressa.attach: a {type(model).__name__} averages gradients in each step, and this "
            "strategy lets ranks train by themselves; hand over the network that it wraps"
        )
    if not trained(model):
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


def _fault_of_device(model: nn.Module) -> CompressaError | None:
    if any(parameter.is_cuda for parameter in trained(model).values()):
        return ConfigError(
            "engine.recover = true, but the model is on a GPU, where nobody knows what a transport "
            "that was ended has left; leave it out, and go on from a checkpoint"
        )
    return None


def _fault_of_small_shares(model: nn.Module, strategy: str) -> CompressaError | None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            return ConfigError(
                f"the parameter {name!r} is made of {parameter.dtype} values, which round away the "
                f"small shares by which {strategy} moves them; train in float32 (with autocast), "
                "or choose another strategy"
            )
    return None


def _fault_of_optimizer(training: Training) -> CompressaError | None:
    optimizer, strategy = training.optimizer, training.config.strategy
    if isinstance(optimizer, torch.optim.LBFGS):
        return StateError(
            "compressa.attach: LBFGS evaluates the loss in its step, and strategy.step() comes "
            "after the backward pass; use another optimizer"
        )
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
