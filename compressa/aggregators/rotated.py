"""RotatedScope: a scope in THC's rotated coordinates, and its place in payloads and sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from compressa.aggregators.scope import Scope
from compressa.arrays import as_array
from compressa.codecs.payload import HEADER_BYTES
from compressa.kernels import block_count
from compressa.kernels.hadamard import Codebook, rotate_back, rotate_quantize, sum_codes
from compressa.kernels.philox import Noise

Sums = npt.NDArray[Any]


class RotatedScope:
    """Part of one segment, a run of whole chunks but for the segment's last.

    Args:
        scope: The part.
        book: Chunks and codes.
        low: Its first coordinate in its shard.
        norms: Of all chunks of the segment; what is needed is seen through, as it changes.
        signs: Of all coordinates of the segment, likewise.

    Attributes:
        high: One past its last coordinate in its shard.
    """

    def __init__(
        self, scope: Scope, book: Codebook, low: int, norms: torch.Tensor, signs: torch.Tensor
    ) -> None:
        self.scope = scope
        self.low = low
        elems, start = scope.segment.elems, scope.start
        size, chunk = book.rotated_elems(elems), start // book.chunk
        self.high = low + size
        self._book = book
        self._norms = as_array(norms[chunk : chunk + block_count(elems, book.chunk)])
        self._signs = as_array(signs[start // 32 : (start + size) // 32])

    def encode(self, p: torch.Tensor, payload: torch.Tensor, noise: Noise) -> None:
        """Write the codes of `p` to their place in a payload."""
        arrays = as_array(p), self._norms, self._signs, self._codes(payload)
        rotate_quantize(*arrays, book=self._book, noise=noise)

    def look_up(self, payload: torch.Tensor, sums: Sums, *, add: bool) -> None:
        """Write the integers of a payload's codes to the shard's sums, or add them."""
        place = sums[self.low : self.high]
        elems = self.scope.segment.elems
        sum_codes(self._codes(payload), elems, place, book=self._book, add=add)

    def decode(
        self, sums: Sums, out: torch.Tensor, count: int, weight: float, *, add: bool = False
    ) -> None:
        """Add `weight` times the mean of `count` ranks' summed integers to `out`, or write it."""
        arrays = sums[self.low : self.high], self._norms, self._signs, as_array(out)
        rotate_back(*arrays, book=self._book, count=count, weight=weight, add=add)

    def _codes(self, payload: torch.Tensor) -> npt.NDArray[np.uint8]:
        first = HEADER_BYTES + self.low // 2
        codes: npt.NDArray[np.uint8] = as_array(payload)
        return codes[first : first + (self.high - self.low) // 2]
