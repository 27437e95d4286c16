"""Lazy reads: lazy tensors, which tell when their values are wanted for the first time.

A parameter whose update is due, or a gradient that is still on its way, has another class until
then, as torch's lazy parameters have until they are made. Whatever function of torch is given one
(`F.linear(x, embedding.weight)`, `state_dict`, `clip_grad_norm_`) asks that class first. So a value
is waited for exactly where it is used, whoever owns it and whichever way control flows; and once it
has come, the class is the ordinary one again, and costs nothing.

What does not ask is C++ that was handed a tensor directly: extensions bound by pybind11,
TorchScript and compiled code. See `compressa.overlap.uses` for what is done about these.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo

Read = Callable[[Sequence[torch.Tensor]], None]
"""Told which lazy tensors are wanted; none if that could not be found out: then any may be."""


def lazy_class(base: type[torch.Tensor], read: Read) -> type[torch.Tensor]:
    """Return a class for tensors of a class while they are lazy.

    Args:
        base: The class that they have otherwise: `torch.Tensor` or `torch.nn.Parameter`.
        read: Called before values are used; it must `release` the tensors, or raise.
    """

    @_disable_dynamo  # a compiler that traces it would take it for done
    def ask(tensors: Sequence[torch.Tensor]) -> None:
        read(tensors)

    class Lazy(base):  # type: ignore[misc, valid-type]
        """Stands in for the base class while values are due."""

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func in _NO_VALUES:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            found = [t for t in _tensors((args, kwargs)) if type(t) is cls]
            ask(found)
            if found:
                return func(*args, **kwargs)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            ask([self])
            return copy.deepcopy(self, memo)

    Lazy.__name__ = Lazy.__qualname__ = base.__name__
    return Lazy


def make_lazy(tensors: Iterable[torch.Tensor], lazy: type[torch.Tensor]) -> None:
    """Have tensors tell when they are read.

    Args:
        tensors: Of the class that `lazy` was made for; their values are not touched.
        lazy: From `lazy_class`.
    """
    for tensor in tensors:
        tensor.__class__ = lazy


def release(tensors: Iterable[torch.Tensor], base: type[torch.Tensor]) -> None:
    """Have tensors be ordinary ones again.

    Args:
        tensors: Lazy or not.
        base: The class that they have then.
    """
    for tensor in tensors:
        tensor.__class__ = base


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _attributes(*names: str, how: str = "__get__") -> set[Any]:
    return {getattr(getattr(torch.Tensor, name), how) for name in names}


_NO_VALUES = frozenset(
    {
        *_attributes("shape", "ndim", "dtype", "device", "layout", "itemsize", "nbytes"),
        *_attributes("is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized", "is_mkldnn"),
        *_attributes("is_sparse_csr", "is_nested", "is_leaf", "requires_grad", "retains_grad"),
        *_attributes("grad", "_grad", "grad_fn", "_backward_hooks", "_post_accumulate_grad_hooks"),
        *_attributes("grad", "requires_grad", how="__set__"),
        *_attributes("grad", how="__delete__"),
        torch.Tensor.__len__,
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.ndimension,
        torch.Tensor.numel,
        torch.Tensor.nelement,
        torch.Tensor.stride,
        torch.Tensor.storage_offset,
        torch.Tensor.element_size,
        torch.Tensor.get_device,
        torch.Tensor.is_contiguous,
        torch.Tensor.is_floating_point,
        torch.Tensor.requires_grad_,
        torch.Tensor.register_hook,
        torch.Tensor.register_post_accumulate_grad_hook,
        torch.is_floating_point,
    }
)
"""What asks for no values. `is_complex` is not here: collectives of torch ask for it, and then read
in C++."""
