"""randomk: k random elements, the same on every rank (Stich et al., 2018; shared seed).

The indices come from a counter-based generator that all ranks share, so none are sent, and
payloads can be summed. One index is drawn per stratum of n / k elements: the marginal
probability of every element is that of drawing without replacement, the indices come out
sorted, and each can be computed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Gt, Le

from compressa.arrays import as_array, copied
from compressa.bias import EVERY, LARGEST, SMALLEST, Range
from compressa.codecs._sparse import share
from compressa.codecs.base import (
    Codec,
    Contraction,
    Draw,
    Granularity,
    Reduction,
    Unbiased,
)
from compressa.codecs.fused import Array, Fused, Ways
from compressa.errors import ConfigError
from compressa.kernels import cuda, philox, select, strata, topk
from compressa.kernels.scratch import scratch

SHARED_STREAM = 0x726B  # "rk": private streams add the rank; this one must not


@dataclass(frozen=True, kw_only=True)
class RandomK(Codec):
    """Send the values at k = max(1, round(density * n)) random indices.

    Wire format: k little-endian float32 values, in increasing order of index. Bias: with
    `unbiased`, values are multiplied by n / k, and omega is about n / k - 1; without, a
    contraction in expectation with delta about k / n, for use with error feedback. Reducible
    in float32. A scope with a NaN or an infinity sends a NaN and zeros.

    Args:
        density: k / n.
        unbiased: Multiply by n / k.

    Example:
        >>> RandomK(density=0.01).wire_bytes(1_000_000)
        40000
    """

    name: ClassVar[str] = "randomk"
    wire_id: ClassVar[int] = 7

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    unbiased: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"randomk: density must be in (0, 1], got {self.density}")

    @property
    def granularity(self) -> Granularity:
        """Indices are drawn over the whole parameter."""
        return Granularity.PARAMETER

    @property
    def reduce(self) -> Reduction:
        """Values at the same indices on every rank: they sum."""
        return Reduction(torch.float32)

    @property
    def shared_stream(self) -> bool:
        """The indices are those of every rank."""
        return True

    @property
    def error_feedback(self) -> bool:
        """A contraction needs feedback; the unbiased form refuses it."""
        return not self.unbiased

    def kept(self, elems: int) -> int:
        """Return k for a scope of `elems` elements."""
        return share(self.density, elems)

    @property
    def takes_half(self) -> bool:
        """The kernel widens."""
        return True

    def wire_bytes(self, elems: int) -> int:
        """Four bytes per kept element."""
        return 4 * self.kept(elems)

    def bias(self, elems: int) -> Unbiased | Contraction:
        """Strata differ in size by one element where k does not divide n: the worst counts."""
        kept = self.kept(elems)
        widest = -(-elems // kept) if kept else 1
        if not self.unbiased:
            return Contraction(1.0 / max(widest, 1), EVERY)
        return Unbiased(widest - 1.0, Range(SMALLEST, LARGEST / widest))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Gather."""
        values, _ = self._write(as_array(x), as_array(payload), None, draw, 1.0)
        if self.unbiased:
            strata.multiply_by_strata(values, x.numel())
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Scatter to the indices that the shared generator gives."""
        self.check(payload, out.numel())
        held = self._read(as_array(payload), out.numel(), draw)
        self._put(held, as_array(out), weight, add=True)

    @cached_property
    def fused(self) -> Fused:
        """Feedback in one pass; values that were multiplied are put back by what copies them."""
        ways = Ways(encode=self._write, read=self._read, put=self._put)
        return Fused(encode_feedback=self._encode_feedback, ways=None if self.unbiased else ways)

    def _encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        loss_scale: float,
    ) -> int:
        """Add the residual, gather, and leave in the residual what was not sent, in one pass."""
        kept = as_array(residual)
        values, indices = self._write(as_array(x), as_array(payload), kept, draw, loss_scale)
        if self.unbiased:
            exact = as_array(copied(payload.view(torch.float32), "randomk.exact"))
            strata.multiply_by_strata(values, x.numel())
            topk.return_unsent(kept, indices, exact, values, loss_scale=loss_scale)
        return payload.numel()

    def _write(
        self, x: Array, payload: Array, residual: Array | None, draw: Draw, loss_scale: float
    ) -> tuple[Array, Array]:
        """Gather to the payload; return the values, and their indices."""
        values = payload.view(np.float32)
        indices = self._indices(x.size, draw, values)
        select.select_at(x, indices, values, residual=residual, loss_scale=loss_scale)
        return values, indices

    def _read(self, payload: Array, elems: int, draw: Draw | None) -> tuple[Array, Array]:
        assert draw is not None, "the indices are not in the payload"
        values = payload.view(np.float32)
        return self._indices(elems, draw, values), values

    def _put(self, held: tuple[Array, Array], out: Array, weight: float, add: bool) -> None:
        if not add:
            cuda.clear(out.view(np.uint8))
        topk.scatter_add(*held, out, weight=weight)

    def _indices(
        self, elems: int, draw: Draw, beside: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.uint32]:
        kept = self.kept(elems)
        words = scratch("randomk.words", kept, np.uint32, beside=beside)
        philox.random_words(
            words,
            seed=draw.seed,
            stream=SHARED_STREAM,
            step=draw.step,
            parameter=draw.parameter,
            start=draw.start,
        )
        indices = scratch("randomk.indices", kept, np.uint32, beside=beside)
        strata.stratified_indices(indices, elems, words)
        return indices
