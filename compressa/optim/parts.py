"""Parts: what a step of an optimizer works on, group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compressa.optim.lists import Tensors
from compressa.parameters import as_real


@dataclass(frozen=True)
class Part:
    """What a step changes by the settings of one parameter group.

    Attributes:
        group: Its settings.
        names: Of its parameters.
        params: The parameters, as real values.
        grads: This rank's gradients, float32 and contiguous; zero where there is none. Whoever
            steps may write to them.
        states: What is kept of each.
    """

    group: dict[str, Any]
    names: list[str]
    params: Tensors
    grads: Tensors
    states: list[dict[str, Any]]

    def kept(self, kind: str) -> Tensors:
        """Return what is kept under a name, which is zero at first: float32, as the parameters."""
        for state, grad in zip(self.states, self.grads, strict=True):
            if kind not in state:
                state[kind] = torch.zeros_like(grad)
        return [state[kind] for state in self.states]


def by_name(parts: Sequence[Part], chosen: Callable[[Part], Tensors]) -> dict[str, torch.Tensor]:
    """Return tensors of all parts by parameter name.

    Args:
        parts: All.
        chosen: Which tensors of a part, one for each parameter.
    """
    return {n: t for part in parts for n, t in zip(part.names, chosen(part), strict=True)}


def names_of(groups: Sequence[dict[str, Any]]) -> Iterator[tuple[torch.Tensor, str]]:
    """Yield parameters with the names that they were given, else "group.index"."""
    for number, group in enumerate(groups):
        indices = [f"{number}.{index}" for index in range(len(group["params"]))]
        yield from zip(group["params"], group.get("param_names", indices), strict=True)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient as real values, float32 and contiguous; zeros for None."""
    if parameter.grad is None:
        real, contiguous = as_real(parameter.detach()), torch.contiguous_format
        return torch.zeros_like(real, dtype=torch.float32, memory_format=contiguous)
    return as_real(parameter.grad.detach().resolve_conj()).float().contiguous()


def like_exchanged(parameter: torch.Tensor) -> torch.Tensor:
    """Return a float32 tensor that looks like what is exchanged of a parameter."""
    real = as_real(parameter.detach())
    return real if real.dtype is torch.float32 else torch.empty_like(real, dtype=torch.float32)
