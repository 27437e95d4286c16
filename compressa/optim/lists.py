"""Lists: the local arithmetic of optimizers, on many tensors by one call or one by one.

Products and sums are rounded one after the other, never fused: whether a fused one is rounded once
or twice is up to the processor, and replicas must have the same bits on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Tensors = list[torch.Tensor]


class Lists:
    """Elementwise operations on lists of tensors.

    Args:
        foreach: Whether `torch._foreach_*` does them, on a GPU in few launches; else a loop does.
    """

    def __init__(self, foreach: bool) -> None:
        self._foreach = foreach

    def __call__(self, name: str, tensors: Sequence[torch.Tensor], *operands: Any) -> Tensors:
        """Apply torch's operation of that name; in place if it ends in an underscore.

        Args:
            name: Such as "mul_" or "sqrt".
            tensors: Its first operand, one by one.
            operands: Numbers, or lists of as many tensors.
        """
        if not tensors:
            return []
        if self._foreach:
            results = getattr(torch, f"_foreach_{name}")(list(tensors), *operands)
            return list(tensors) if results is None else list(results)
        return [
            getattr(tensor, name)(*(o[i] if isinstance(o, list) else o for o in operands))
            for i, tensor in enumerate(tensors)
        ]

    def decay(self, means: Tensors, beta: float, values: Tensors) -> None:
        """Have moving averages go on, in place: beta times themselves plus 1 - beta of values.

        Args:
            means: The averages.
            beta: Weight of what they were, from 0 to 1.
            values: As many tensors of the same shapes, left as they are.
        """
        self("mul_", means, beta)
        self("add_", means, self("mul", values, 1.0 - beta))
