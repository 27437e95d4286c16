"""What Compressa knows of a parameter, and the pieces of parameters that travel together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Of gradients that can be combined; complex ones are pairs of them."""


def as_real(values: torch.Tensor) -> torch.Tensor:
    """Return complex values, which are not lazily conjugated, as real ones; real ones as they are.

    Args:
        values: Of any shape; the result shares its memory, with a last dimension of 2 more.

    Example:
        >>> as_real(torch.zeros(3, dtype=torch.complex64)).shape
        torch.Size([3, 2])
    """
    return torch.view_as_real(values) if values.is_complex() else values


def plain_name(name: str) -> str:
    """Return a parameter's name without what `torch.compile`, checkpointing and FSDP1 add.

    Args:
        name: In `module.named_parameters()`.

    Example:
        >>> plain_name("_orig_mod.blocks.0._checkpoint_wrapped_module.weight")
        'blocks.0.weight'
    """
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def plain_parameters(module: nn.Module, *, frozen: bool) -> dict[str, nn.Parameter]:
    """Return a module's parameters by plain name; a shared one is there once.

    Args:
        module: Any.
        frozen: Whether those that are not trained count, too.
    """
    named = module.named_parameters()
    return {plain_name(name): p for name, p in named if frozen or p.requires_grad}


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return what is trained of a module, by plain name; a shared parameter is there once."""
    return plain_parameters(module, frozen=False)


class Role(StrEnum):
    """What a parameter does in its model; rules in the configuration can match it."""

    WEIGHT = "weight"
    BIAS = "bias"
    NORM = "norm"
    EMBEDDING = "embedding"
    OUTPUT = "output"


@dataclass(frozen=True)
class ParameterInfo:
    """Facts about one trainable parameter.

    Attributes:
        index: Position in the model's parameter list; the same on every rank.
        name: Its `plain_name` in the module; state is keyed by it.
        shape: Shape of the parameter; of a complex one that of `as_real`.
        dtype: Dtype of its gradient; of a complex one that of its two parts.
        role: What it does in the model.
        fragment: Parameters of different fragments are never sent as one.
        exact: Whether nothing compresses it, whatever is configured.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    role: Role = Role.WEIGHT
    fragment: int = 0
    exact: bool = False

    @property
    def elems(self) -> int:
        """Number of elements; of a complex parameter, two for each."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Segment:
    """A contiguous run of one parameter's elements, compressed as one scope.

    Attributes:
        parameter: The parameter that it belongs to.
        start: First element, in the flattened parameter.
        stop: One past the last element.
    """

    parameter: ParameterInfo
    start: int
    stop: int

    @property
    def elems(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    @property
    def name(self) -> str:
        """Name for people: the parameter's, with the range where it is only a part."""
        if self.elems == self.parameter.elems:
            return self.parameter.name
        return f"{self.parameter.name}[{self.start}:{self.stop}]"

    def part(self, start: int, stop: int) -> Segment:
        """Return the part [start, stop), counted in elements from this segment's first one."""
        return Segment(self.parameter, self.start + start, self.start + stop)


@dataclass(frozen=True)
class Layout:
    """The segments of one unit, in order; they share a compressor and a dtype.

    Attributes:
        unit: Number of the unit; the same on every rank.
        segments: The parts, in the order in which their payloads are laid out.
        joined: The layouts of the units that this one stands for; empty if it is one.
    """

    unit: int
    segments: tuple[Segment, ...]
    joined: tuple[Layout, ...] = ()

    @classmethod
    def join(cls, layouts: Sequence[Layout]) -> Layout:
        """Return the layout of what stands for several units, with the number of the first."""
        segments = tuple(segment for layout in layouts for segment in layout.segments)
        return cls(layouts[0].unit, segments, tuple(layouts))

    @property
    def elems(self) -> int:
        """Number of elements of all segments."""
        return sum(segment.elems for segment in self.segments)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the gradients; the same for all segments."""
        return self.segments[0].parameter.dtype

    @property
    def name(self) -> str:
        """Name for people and traces: the first segment's, and how many more there are."""
        more = len(self.segments) - 1
        return self.segments[0].name + (f" (+{more})" if more else "")
