"""Flat parameters: what FSDP1 brings together, and what of it is which parameter's.

A unit of FSDP1 (a `FullyShardedDataParallel`) lays its parameters into one, of which each rank owns
a slice. What lies there is known to FSDP1's own objects: this file alone looks into them
(`torch.distributed.fsdp._flat_param`, torch 2.13).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._common_utils import HandleTrainingState

from compressa.config.roles import Held, infos_of
from compressa.errors import StateError
from compressa.integrations.fsdp.groups import Group, Sharding
from compressa.integrations.fsdp.sliced import SlicedFlat, SlicedParameter
from compressa.parameters import ParameterInfo, plain_name


def sharding_of_flat(caller: str, root: FullyShardedDataParallel) -> Sharding:
    """Read how FSDP1 has sharded a model; a unit is a group.

    Args:
        caller: The function that the user called, which errors name.
        root: The outermost unit, after its first forward pass.

    Raises:
        StateError: In a way that can not be followed. Without a word to other ranks, which see the
            same.
    """
    modules: list[Any] = [*FullyShardedDataParallel.fsdp_modules(root)]
    units = [unit for unit in modules if unit._has_params]
    for unit in units:
        _check(caller, unit._handle)
    ranks = units[0]._handle.process_group
    if any(unit._handle.process_group != ranks for unit in units):
        raise StateError(
            f"{caller}: units of FullyShardedDataParallel have different process groups; give all "
            "of them one"
        )
    infos = _infos(root, units)
    groups = tuple(_group(number, unit, infos) for number, unit in enumerate(units))
    return Sharding(caller, groups, ranks, None, units[0].compute_device)


def trained(inner: Any) -> list[bool]:
    """Return which parameters of a unit are trained now."""
    flat = inner.flat_param
    if flat._params is None:  # use_orig_params=False: all or none
        return [flat.requires_grad] * flat._num_params
    return [p.requires_grad for p in flat._params]


def due(caller: str, groups: Sequence[Group], gradient: torch.Tensor) -> Group:
    """Return the group whose gradient FSDP1 hands over, which is the first in its pass.

    Args:
        caller: The function that the user called, which errors name.
        groups: Of the model.
        gradient: What is handed over, padding included.

    Raises:
        StateError: That can not be told.
    """
    found = [group for group in groups if _ended(group.inner) and _fits(group.inner, gradient)]
    if len(found) != 1:
        raise StateError(
            f"{caller}: it can not be told of which of {len(found)} units of "
            f"FullyShardedDataParallel the first gradient is, of {gradient.numel()} elements; see "
            "that all parameters get a gradient in the first backward pass that is reduced"
        )
    return found[0]


def _ended(inner: Any) -> bool:
    """Whether a unit's gradient is complete in this pass."""
    state = HandleTrainingState.BACKWARD_POST
    return bool(inner._training_state == state and inner.flat_param.requires_grad)


def _fits(inner: Any, gradient: torch.Tensor) -> bool:
    padded = inner.flat_param._sharded_size.numel() * _n_slices(inner)
    return bool(padded == gradient.numel())


def _n_slices(inner: Any) -> int:
    return inner.world_size if inner.uses_sharded_strategy else 1


def _check(caller: str, inner: Any) -> None:
    name = inner.flat_param._fqns[0]
    if not inner.uses_sharded_strategy and inner.world_size > 1:
        raise StateError(
            f"{caller}: the unit of {name!r} is replicated, not sharded (NO_SHARD); wrap the model "
            "in DistributedDataParallel, whose register_comm_hook takes the same pair"
        )
    if any(extension is not None for extension in inner.flat_param._param_extensions):
        raise StateError(
            f"{caller}: the unit of {name!r} is sharded by tensor parallelism, too; leave the "
            "model whole before FullyShardedDataParallel"
        )


def _infos(root: nn.Module, units: Sequence[Any]) -> Mapping[tuple[nn.Module, str], ParameterInfo]:
    """Return what is known of all parameters, by the first module that holds them."""
    names = {id(module): name for name, module in root.named_modules()}
    held = defaultdict[int, list[Held]](list)
    for parameter in (parameter for unit in units for parameter in _held(unit._handle, names)):
        held[id(parameter.holders[0][0])].append(parameter)
    ordered = [parameter for module in root.modules() for parameter in held[id(module)]]
    infos = infos_of(root, ordered)
    return {p.holders[0]: info for p, info in zip(ordered, infos, strict=True)}


def _held(inner: Any, names: Mapping[int, str]) -> Iterator[Held]:
    """Yield the parameters of a unit, in the order in which they lie there."""
    flat = inner.flat_param
    shared = defaultdict[tuple[nn.Module, str], list[tuple[nn.Module, str]]](list)
    for other in flat._shared_param_infos:
        first = (other.prim_module, other.prim_param_name)
        shared[first].append((other.module, other.param_name))
    for (attribute, module, _), shape in zip(flat._param_infos, flat._shapes, strict=True):
        name = plain_name(f"{names[id(module)]}.{attribute}".lstrip("."))
        holders = ((module, attribute), *shared[module, attribute])
        yield Held(name, tuple(shape), inner._reduce_dtype, holders)


def _group(number: int, unit: Any, infos: Mapping[tuple[nn.Module, str], ParameterInfo]) -> Group:
    inner = unit._handle
    flat = inner.flat_param
    elems, own = flat._sharded_size.numel(), zip(flat._param_infos, trained(inner), strict=True)
    sliced: list[SlicedParameter] = []
    first = 0
    for run, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not padding:
            (attribute, module, _), wanted = next(own)
            if wanted:
                sliced.append(SlicedFlat(infos[module, attribute], first, elems))
        first += run
    return Group(number, unit, inner, tuple(sliced), ())
