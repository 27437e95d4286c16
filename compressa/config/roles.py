"""What each parameter does in its model, inferred from the modules that own it."""

from __future__ import annotations

from collections.abc import Callable

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
    named = plain_parameters(module, frozen=frozen)
    embeddings = _owned(module, _is_embedding)
    norms = _owned(module, _is_norm)
    roles = {name: _role(name, p, embeddings, norms) for name, p in named.items()}
    output = _output_weight(module)
    matrices = [p for p in module.parameters() if p.ndim > 1]
    for name, parameter in named.items():
        if parameter is output and roles[name] is Role.WEIGHT and len(matrices) > 1:
            roles[name] = Role.OUTPUT
    return roles


def parameter_infos(module: nn.Module, *, frozen: bool = False) -> tuple[ParameterInfo, ...]:
    """Return the facts about each trainable parameter, in the model's order.

    A complex one counts as real, with its real and its imaginary parts in a last dimension of 2.

    Args:
        module: Any model.
        frozen: Whether those that are not trained count, too.
    """
    roles = infer_roles(module, frozen=frozen)
    named = plain_parameters(module, frozen=frozen)
    return tuple(
        ParameterInfo(index, name, _shape(p), p.dtype.to_real(), roles[name])
        for index, (name, p) in enumerate(named.items())
    )


def _shape(parameter: torch.Tensor) -> tuple[int, ...]:
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def _role(name: str, parameter: torch.Tensor, embeddings: set[int], norms: set[int]) -> Role:
    last = name.rpartition(".")[2]
    if id(parameter) in embeddings:
        return Role.EMBEDDING
    if id(parameter) in norms:
        return Role.NORM
    if last.startswith("bias") or last.endswith("bias"):
        return Role.BIAS
    return Role.WEIGHT


def _is_embedding(module: nn.Module) -> bool:
    return isinstance(module, _EMBEDDINGS)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, _NORMS) or type(module).__name__.endswith("Norm")


def _owned(module: nn.Module, wanted: Callable[[nn.Module], bool]) -> set[int]:
    """Return the identities of the parameters that such modules hold themselves."""
    owners = (inner for inner in module.modules() if wanted(inner))
    return {id(p) for owner in owners for p in owner.parameters(recurse=False)}


def _output_weight(module: nn.Module) -> torch.Tensor | None:
    # Attention's out_proj is a subclass of its own, and no model's output.
    linears = [inner for inner in module.modules() if type(inner) is nn.Linear]
    return linears[-1].weight if linears else None
