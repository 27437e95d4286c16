"""What each parameter does in its model, inferred from the modules that own it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from compressa.parameters import ParameterInfo, Role, plain_parameters

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_NORMS = (
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.modules.batchnorm._NormBase,  # every BatchNorm and InstanceNorm
)


@dataclass(frozen=True)
class Held:
    """A parameter, and who holds it.

    Attributes:
        name: Its `plain_name` in the model.
        shape: Its whole shape.
        dtype: Its dtype.
        holders: Modules, each with the name of its attribute.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    holders: tuple[tuple[nn.Module, str], ...]


def infer_roles(module: nn.Module, *, frozen: bool = False) -> dict[str, Role]:
    """Return the role of each trainable parameter.

    The first that holds decides: the weight of an embedding (an output weight tied to it
    too); anything in a normalisation layer (torch's, or a class whose name ends in "Norm");
    a name that begins or ends with "bias"; the weight of the last `nn.Linear` in the order of
    registration, if the model has more than one weight matrix; a weight.

    Args:
        module: Any model.
        frozen: Whether parameters that are not trained have roles, too.

    Returns:
        Roles by the names of `plain_parameters`, in that order.

    Example:
        >>> list(infer_roles(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))).values())
        [<Role.WEIGHT: 'weight'>, <Role.BIAS: 'bias'>, <Role.OUTPUT: 'output'>, <Role.BIAS: 'bias'>]
    """
    return {info.name: info.role for info in parameter_infos(module, frozen=frozen)}


def parameter_infos(module: nn.Module, *, frozen: bool = False) -> tuple[ParameterInfo, ...]:
    """Return the facts about each trainable parameter, in the model's order.

    A complex one counts as real, with its real and its imaginary parts in a last dimension of 2.

    Args:
        module: Any model.
        frozen: Whether those that are not trained count, too.
    """
    holders: defaultdict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for inner in module.modules():
        for attribute, p in inner.named_parameters(recurse=False, remove_duplicate=False):
            holders[id(p)].append((inner, attribute))
    named = plain_parameters(module, frozen=True)
    held = [Held(name, p.shape, p.dtype, tuple(holders[id(p)])) for name, p in named.items()]
    wanted = [info for info in infos_of(module, held) if frozen or named[info.name].requires_grad]
    return tuple(replace(info, index=index) for index, info in enumerate(wanted))


def infos_of(module: nn.Module, held: Sequence[Held]) -> tuple[ParameterInfo, ...]:
    """Return the facts about parameters, in the given order, with roles as `infer_roles` says.

    Args:
        module: The model.
        held: All of its parameters, which may be cut into shards.
    """
    linears = [inner for inner in module.modules() if type(inner) is nn.Linear]
    # Attention's out_proj is a subclass of its own, and no model's output.
    several = sum(len(p.shape) > 1 for p in held) > 1
    last = linears[-1] if linears and several else None
    return tuple(
        ParameterInfo(index, p.name, _shape(p), p.dtype.to_real(), _role(p, last))
        for index, p in enumerate(held)
    )


def _shape(parameter: Held) -> tuple[int, ...]:
    return (*parameter.shape, 2) if parameter.dtype.is_complex else tuple(parameter.shape)


def _role(parameter: Held, last: nn.Linear | None) -> Role:
    """Return what a parameter does.

    Args:
        parameter: The parameter.
        last: Whose weight makes the output, if that can be told.
    """
    modules = [module for module, _ in parameter.holders]
    if any(_is_embedding(module) for module in modules):
        return Role.EMBEDDING
    if any(_is_norm(module) for module in modules):
        return Role.NORM
    name = parameter.name.rpartition(".")[2]
    if name.startswith("bias") or name.endswith("bias"):
        return Role.BIAS
    output = any(m is last and name == "weight" for m, name in parameter.holders)
    return Role.OUTPUT if output else Role.WEIGHT


def _is_embedding(module: nn.Module) -> bool:
    return isinstance(module, _EMBEDDINGS)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, _NORMS) or type(module).__name__.endswith("Norm")
