"""Refusals: settings, parameters and gradients that no optimizer here can be given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compressa.config import Config
from compressa.errors import ConfigError, StateError

_HALVES = (torch.float16, torch.bfloat16)


def outside(group: Mapping[str, Any], name: str, low: float, high: float | None = None) -> str:
    """Return why a setting is not a number in [low, high), or nothing.

    Args:
        group: Settings.
        name: Which.
        low: The least.
        high: The first that is too large; None if none is.
    """
    value = group[name]
    values = value if isinstance(value, tuple | list) else (value,)
    numbers = all(isinstance(each, int | float | torch.Tensor) for each in values)
    if numbers and all(low <= each and (high is None or each < high) for each in values):
        return ""
    limits = f"at least {low}" if high is None else f"in [{low}, {high})"
    return f"{name} = {value}; it must be {limits}"


def is_count(value: object) -> bool:
    """Whether something is a whole number, at least 1."""
    return isinstance(value, int) and value >= 1


def check_parameters(
    caller: str,
    groups: Sequence[dict[str, Any]],
    trained: Mapping[str, torch.Tensor],
    fault: Callable[[Mapping[str, Any]], str],
) -> None:
    """Refuse settings out of range, and parameters whose momenta can not be kept in float32.

    Args:
        caller: What was called.
        groups: All.
        trained: Parameters by name.
        fault: Says what is wrong about a group besides; or nothing.

    Raises:
        ConfigError: There is one.
    """
    for number, group in enumerate(groups):
        wrong = outside(group, "lr", 0.0) or outside(group, "weight_decay", 0.0) or fault(group)
        if wrong:
            where = f" (parameter group {number})" if len(groups) > 1 else ""
            raise ConfigError(f"{caller}: {wrong}{where}")
    if not trained:
        raise ConfigError(
            f"{caller}: no parameter requires a gradient; thaw some (requires_grad_(True)) before"
        )
    for name, parameter in trained.items():
        if parameter.dtype not in (torch.float32, torch.complex64, *_HALVES):
            raise ConfigError(
                f"{caller}: the parameter {name!r} is made of {parameter.dtype} values, and "
                "momenta are kept in float32; convert it, or freeze it (requires_grad_(False))"
            )


def check_configuration(caller: str, config: Config) -> None:
    """Refuse settings that an optimizer which exchanges momenta can not follow.

    Args:
        caller: What was called.
        config: The settings.

    Raises:
        ConfigError: `engine.recover` or `momentum.factor` is set.
    """
    if config.engine.recover:
        raise ConfigError(
            f"{caller}: engine.recover = true, but the momenta of a step that failed are lost; "
            "leave it out, and go on from a checkpoint (save, state_dict)"
        )
    if config.momentum.factor:
        raise ConfigError(
            f"{caller}: momentum.factor = {config.momentum.factor}, but the optimizer has a "
            "momentum of its own; leave the section out"
        )


def check_step(
    caller: str,
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    trained: Mapping[str, torch.Tensor],
) -> None:
    """Refuse gradients that can not be exchanged; before they are.

    Args:
        caller: What was called.
        optimizer: Has `found_inf` where a `GradScaler` calls it.
        names: Of all parameters of the optimizer, frozen ones too.
        trained: By name, those that required a gradient when the optimizer was made.

    Raises:
        StateError: One is sparse, or of a parameter that was frozen; or losses are scaled.
    """
    if getattr(optimizer, "found_inf", None) is not None:
        raise StateError(
            f"{caller}: losses are scaled by a GradScaler, which has each rank skip steps by "
            "itself; train in bfloat16, which needs no scaler"
        )
    for parameter, name in names.items():
        grad = parameter.grad
        if grad is None:
            continue
        if name not in trained and parameter.numel():
            raise StateError(
                f"{caller}: the parameter {name!r} was thawed since the optimizer was made, and "
                "ranks would not exchange it; close the optimizer, and make another"
            )
        if grad.layout is not torch.strided:
            raise StateError(
                f"{caller}: the gradient of {name!r} is sparse, and ranks combine dense ones; "
                "make its embedding with sparse=False"
            )
