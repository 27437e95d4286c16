"""Groups: what FSDP2 brings together in one collective.

torch's interface for a collective hands over flat memory only. What lies there is known to FSDP2's
own objects: this file alone looks into them (`torch.distributed.fsdp._fully_shard`, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo
from torch.distributed.tensor import DTensor

from compressa.config.roles import parameter_infos
from compressa.errors import BackendUnavailable, StateError
from compressa.integrations.fsdp.sliced import SlicedParameter, lay_out
from compressa.parameters import ParameterInfo, plain_parameters

CALLER = "compressa.apply_to_fsdp"
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Group:
    """Parameters that FSDP brings together.

    Attributes:
        number: Of the group, in the model's order.
        module: Whose `set_custom_...` calls are for it; of FSDP1 the wrapper that hooks it.
        inner: FSDP's own object.
        reduced: Where gradients lie in a reduce-scatter, in its dtype.
        gathered: Where all parameters lie in an all-gather, frozen ones too, in its dtype.
    """

    number: int
    module: Any
    inner: Any
    reduced: tuple[SlicedParameter, ...]
    gathered: tuple[SlicedParameter, ...]


@dataclass(frozen=True)
class Sharding:
    """How FSDP has sharded a model.

    Attributes:
        caller: The function that the user called, which errors name.
        groups: In the model's order.
        shards: The ranks that a parameter is cut into.
        replicas: The ranks that own the same shard in HSDP; None without replicas.
        device: Where parameters are.
    """

    caller: str
    groups: tuple[Group, ...]
    shards: dist.ProcessGroup
    replicas: dist.ProcessGroup | None
    device: torch.device

    def counted(self, group: dist.ProcessGroup) -> str:
        """Say how errors count ranks of a part of the world; nothing where it is the world."""
        ranks = dist.get_process_group_ranks(group)
        if ranks == list(range(dist.get_world_size())):
            return ""
        return f"ranks are counted among the ranks {ranks} of the default group"

    @property
    def reduced(self) -> tuple[ParameterInfo, ...]:
        """All trainable parameters, in the model's order, numbered from 0."""
        return _ordered(one for group in self.groups for one in group.reduced)

    @property
    def gathered(self) -> tuple[ParameterInfo, ...]:
        """All parameters, in the model's order."""
        return _ordered(one for group in self.groups for one in group.gathered)


def _ordered(sliced: Any) -> tuple[ParameterInfo, ...]:
    return tuple(sorted((one.parameter for one in sliced), key=lambda p: p.index))


def sharding_of(model: nn.Module) -> Sharding:
    """Read how a model is sharded.

    Args:
        model: The module that `fully_shard` was applied to last, or a compiled one around it.

    Raises:
        StateError: It is not sharded by FSDP2, in a way that can not be followed, or has custom
            collectives already. Without a word to other ranks, which see the same.
        BackendUnavailable: FSDP2 of this torch is another one.
    """
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise BackendUnavailable(
            f"{CALLER} needs FSDP2 of torch 2.13 or later, and this is torch {torch.__version__}; "
            "install a later one"
        )
    module = getattr(model, "_orig_mod", model)
    owners = _owners(module)
    for owner, inner in owners:
        _check(inner)
        owner.reshard()  # a pass without training may have left parameters whole
    _check_rest(module)
    first = owners[0][1]
    info = first.mesh_info
    if any(inner.mesh_info.shard_process_group != info.shard_process_group for _, inner in owners):
        raise StateError(f"{CALLER}: modules are sharded over different meshes; shard all over one")
    known = {id(p): name for name, p in plain_parameters(module, frozen=True).items()}
    infos = {info.name: info for info in parameter_infos(module, frozen=True)}
    ranks = info.shard_process_group.size()
    groups = [
        _group(number, owner, inner, known, infos, ranks)
        for number, (owner, inner) in enumerate(owners)
    ]
    replicas = info.replicate_process_group if isinstance(info, HSDPMeshInfo) else None
    return Sharding(CALLER, tuple(groups), info.shard_process_group, replicas, first.device)


def _owners(module: nn.Module) -> list[tuple[Any, Any]]:
    """Return each group of parameters once, behind a module that it is of."""
    owners: dict[int, tuple[Any, Any]] = {}
    for inner in _sharded_modules(module):
        groups = inner._get_fsdp_state()._fsdp_param_groups
        if len(groups) > 1:
            raise StateError(
                f"{CALLER}: a module is sharded over several meshes by its shard_placement_fn, "
                "for which FSDP2 takes no custom collectives; shard it over one"
            )
        for group in groups:
            owners.setdefault(id(group), (inner, group))
    return list(owners.values())


def _sharded_modules(module: nn.Module) -> list[Any]:
    found: list[Any] = [inner for inner in module.modules() if isinstance(inner, FSDPModule)]
    if any(isinstance(inner, FullyShardedDataParallel) for inner in module.modules()):
        raise StateError(
            f"{CALLER} takes a model of FSDP2, and this one is wrapped in FullyShardedDataParallel "
            "(FSDP1); to compress its gradients, call "
            "model.register_comm_hook(*compressa.comm_hook(config)); for the rest, call "
            "torch.distributed.fsdp.fully_shard(model) in its place"
        )
    if not any(inner._get_fsdp_state()._fsdp_param_groups for inner in found):
        raise StateError(
            f"{CALLER}: {type(module).__name__} is not sharded; call "
            "torch.distributed.fsdp.fully_shard(model) first, or, to replicate a model, use "
            "DistributedDataParallel and compressa.register_comm_hook"
        )
    return found


def _check_rest(module: nn.Module) -> None:
    """Refuse a model of which a part is trained that no group has, but what FSDP2 was to ignore."""
    if isinstance(module, FSDPModule):
        return
    parameters = module.named_parameters()
    rest = [name for name, p in parameters if p.requires_grad and not isinstance(p, DTensor)]
    if rest:
        raise StateError(
            f"{CALLER}: {rest[0]!r} and {len(rest) - 1} other parameters are not sharded, and "
            "would be neither averaged nor compressed; call "
            f"torch.distributed.fsdp.fully_shard(model), and {CALLER} after the last fully_shard"
        )


def _check(inner: Any) -> None:
    """Refuse a group whose collectives would not be the ones that are followed."""
    if not isinstance(inner.mesh_info, FSDPMeshInfo):
        raise StateError(
            f"{CALLER}: this model is replicated, not sharded; wrap it in DistributedDataParallel, "
            "and call compressa.register_comm_hook"
        )
    defaults = type(inner._reduce_scatter_comm), type(inner._all_gather_comm)
    if defaults != (DefaultReduceScatter, DefaultAllGather) or inner._all_reduce_hook is not None:
        raise StateError(
            f"{CALLER}: this model has custom collectives already, of this call or another's; "
            "shard it anew to apply another configuration"
        )
    for parameter in inner.fsdp_params:
        if parameter.is_dtensor or parameter.fsdp_placement.dim != 0:
            raise StateError(
                f"{CALLER}: {parameter._module_info.param_name!r} is sharded along another "
                "dimension than its first, or by tensor parallelism too; leave out "
                "shard_placement_fn, and the model whole"
            )


def _group(
    number: int,
    module: Any,
    inner: Any,
    names: dict[int, str],
    infos: dict[str, ParameterInfo],
    ranks: int,
) -> Group:
    reduced, gathered = [], []
    for parameter in inner.fsdp_params:
        sharded, policy = parameter.sharded_param, parameter.mp_policy
        info = infos[names[id(sharded)]]
        computed = policy.param_dtype or sharded.dtype
        gathered.append(replace(info, dtype=computed))
        if sharded.requires_grad:
            # torch 2.15 reduces in the dtype in which gradients add up; before, as computed.
            added = getattr(parameter, "sharded_grad_dtype", None) or computed
            reduced.append(replace(info, dtype=policy.reduce_dtype or added))
    return Group(number, module, inner, lay_out(reduced, ranks), lay_out(gathered, ranks))


def check_dtypes(caller: str, parameters: Sequence[ParameterInfo], what: str) -> None:
    """Refuse what is brought in a dtype that is not compressed.

    Args:
        caller: The function that the user called, which the error names.
        parameters: With the dtypes in which they are brought.
        what: What of them is brought.

    Raises:
        StateError: One is neither float32 nor bfloat16.
    """
    for parameter in parameters:
        if parameter.dtype not in DTYPES:
            raise StateError(
                f"{caller}: {what} of {parameter.name!r} would be brought in {parameter.dtype}, "
                "and float32 and bfloat16 are compressed; float16 needs loss scaling, which is "
                "not followed here: choose bfloat16 for mixed precision"
            )


def without_replicas(inner: Any) -> None:
    """Have FSDP2 leave the all-reduce over replicas to the hook of a group."""
    before = inner.mesh_info
    after = FSDPMeshInfo(before.mesh, before.shard_mesh_dim)
    after.reduce_scatter_process_group = before.reduce_scatter_process_group
    inner.mesh_info = after
    if inner.post_forward_mesh_info is before:
        inner.post_forward_mesh_info = after
