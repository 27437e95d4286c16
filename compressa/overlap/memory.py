"""Memory: where gradients are from the moment in which they are submitted, step after step.

A gradient lives on into the next forward pass, side by side with the activations of that. Left
where autograd has put it, among activations that are freed before it, it would tear holes that no
activation fits into: memory would grow, and be new to the process in each step, which costs the
kernel more than the copy. So each parameter has memory of its own, of which nobody else has views.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from compressa.errors import StateError

_OWN_REFERENCES = 2  # of a storage: that of the tensor that is kept, and that of the Python object


class Memory:
    """Room for a gradient of each parameter.

    Args:
        parameters: By name.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._kept = {name: torch.empty_like(p.detach()) for name, p in parameters.items()}

    def moved(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient in its parameter's memory, where it may be already.

        Args:
            name: The parameter's.
            gradient: Of any strides; copied, in its dtype and memory order, if it is elsewhere.
        """
        kept = self._kept[name]
        if gradient.untyped_storage().data_ptr() == kept.untyped_storage().data_ptr():
            return gradient
        return self.room(name, gradient).copy_(gradient)

    def room(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor like another one, in the parameter's memory.

        Who still has the tensor of an earlier step keeps that memory, and there is other from now
        on.

        Args:
            name: The parameter's.
            like: Has the shape, dtype and strides.

        Returns:
            A tensor of its own over that memory; what is in it is not defined.
        """
        kept = self._kept[name]
        same = (like.shape, like.dtype) == (kept.shape, kept.dtype)
        if not same or like.stride() != kept.stride() or _used(kept):
            kept = self._kept[name] = torch.empty_like(like.detach())
        return kept.detach()


def check_kind(name: str, gradient: torch.Tensor) -> None:
    """Refuse gradients that can not be combined.

    Args:
        name: The parameter's, for the message.
        gradient: As backward has left it.

    Raises:
        StateError: It is sparse, or part of a graph.
    """
    if gradient.layout is not torch.strided:
        raise StateError(
            f"the gradient of {name!r} is sparse, and ranks combine dense ones; make its embedding "
            "with sparse=False"
        )
    if gradient.requires_grad:
        raise StateError(
            f"the gradient of {name!r} is part of a graph; leave create_graph=True out of backward"
        )


def _used(kept: torch.Tensor) -> bool:
    """Whether any other tensor has the same memory."""
    storage = kept.untyped_storage()  # whose reference ends with it before torch 2.10
    return torch._C._storage_Use_Count(storage._cdata) > _OWN_REFERENCES
