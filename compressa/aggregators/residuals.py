"""ChunkResiduals: the residuals of aggregators that work on whole chunks of them.

Before the first round the gradient goes into the residual, which then is p = g + e, unscaled,
and the gradient's memory is free for the mean. What a step sends is taken out of the residual
afterwards, so what is not sent needs no further pass, and a skipped step only puts back what was
taken.

What is not finite, or larger than an aggregator can send, stays out of the residual. Its chunks'
norms are NaN then, and that is how the other ranks learn of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from compressa.aggregators.base import Scope, StepContext, held_back
from compressa.aggregators.scope_calls import Call, ScopeCalls
from compressa.arrays import as_array
from compressa.kernels import block_count
from compressa.kernels.chunks import FLOAT32_MAX, absorb_chunks


class ChunkResiduals:
    """The residuals of a unit's scopes.

    Args:
        scopes: The scopes.
        chunk: Elements of a chunk; the last of a scope may be short.
        parts: Each scope's residual, or memory of its own that stands for one.
        largest: The largest magnitude that may be kept.

    Attributes:
        norms: The squared norm of each scope's chunks, float64, as of the last `absorb`; NaN where
            an element was not kept, zero where a scope is held back.
        held: Whether each scope's residual waits in the step under way.
    """

    def __init__(
        self,
        scopes: Sequence[Scope],
        chunk: int,
        parts: Sequence[torch.Tensor],
        largest: float = FLOAT32_MAX,
    ) -> None:
        self._scopes = tuple(scopes)
        self._chunk = chunk
        self._largest = largest
        self._parts = list(parts)
        counts = [block_count(scope.segment.elems, chunk) for scope in scopes]
        device = parts[0].device
        self._all_norms = torch.zeros(sum(counts), dtype=torch.float64, device=device)
        self.norms = torch.split(self._all_norms, counts)
        pairs = zip(self._parts, self.norms, strict=True)
        self._arrays = [(as_array(part), as_array(norms)) for part, norms in pairs]
        self.held = [False] * len(self._scopes)
        self._calls = ScopeCalls(device)

    def __getitem__(self, i: int) -> torch.Tensor:
        """Return the residual of scope i."""
        return self._parts[i]

    @property
    def all_norms(self) -> torch.Tensor:
        """The norms of all scopes in a row."""
        return self._all_norms

    def clear(self) -> None:
        """Forget everything."""
        for part in self._parts:
            part.zero_()

    def absorb(
        self, gradients: Sequence[torch.Tensor], context: StepContext, *, clear: bool = True
    ) -> None:
        """Take up a step's gradients, but for those of scopes that wait.

        Args:
            gradients: The unit's; set to zero afterwards with `clear`.
            context: The step.
            clear: Whether the memory is wanted for the mean.
        """
        values = [scope.of(gradients) for scope in self._scopes]
        for i, x in enumerate(values):
            self.held[i] = held_back(x, context)
            if self.held[i]:
                self.norms[i].zero_()
        addresses = tuple(x.data_ptr() for x in values)
        key = addresses, tuple(self.held), context.loss_scale, clear
        self._calls.run(key, lambda: list(self._absorbing(values, context.loss_scale, clear)))

    def _absorbing(
        self, values: Sequence[torch.Tensor], loss_scale: float, clear: bool
    ) -> Iterator[Call]:
        """Yield what takes up the values of each scope that does not wait."""
        for x, arrays, held in zip(values, self._arrays, self.held, strict=True):
            if not held:
                yield partial(
                    absorb_chunks,
                    self._calls.array(x),
                    *arrays,
                    chunk=self._chunk,
                    loss_scale=loss_scale,
                    clear=clear,
                    largest=self._largest,
                )
