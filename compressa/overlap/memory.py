"""Memory: where gradients are from the moment in which they are submitted, step after step.

A gradient lives on into the next forward pass, side by side with the activations of that. Left
where autograd has put it, among activations that are freed before it, it would tear holes that no
activation fits into: memory would grow, and be new to the process in each step, which costs the
kernel more than the copy. So each parameter has memory of its own, of which nobody else has views.

Where updates do not wait for the next forward pass, gradients end as they do without communication,
and what nobody else has views of stays where it is.
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
        self._alone = _references_in_backward()

    def owns(self, gradient: torch.Tensor) -> bool:
        """Return, within a hook of backward, whether memory is a gradient's alone, and as it reads.

        What is lazily conjugated or negated is not.
        """
        storage = gradient.untyped_storage()
        return (
            gradient.is_contiguous()
            and not (gradient.is_conj() or gradient.is_neg())
            and storage.nbytes() == gradient.nbytes
            and torch._C._storage_Use_Count(storage._cdata) <= self._alone
        )

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


def _references_in_backward() -> int:
    """Count those of a gradient's storage that nobody else has, when backward has accumulated it.

    Autograd itself may still have the tensor that it was made from.
    """
    found: list[int] = []

    def count(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        storage = parameter.grad.untyped_storage()
        found.append(torch._C._storage_Use_Count(storage._cdata))

    with torch.enable_grad(), torch.inference_mode(False):
        probe = torch.zeros(2, requires_grad=True)
        probe.register_post_accumulate_grad_hook(count)
        (probe * torch.ones(2)).backward(torch.ones(2))
    return found[0]


def _used(kept: torch.Tensor) -> bool:
    """Whether any other tensor has the same memory."""
    storage = kept.untyped_storage()  # whose reference ends with it before torch 2.10
    return torch._C._storage_Use_Count(storage._cdata) > _OWN_REFERENCES
