"""Operands: the memory that cases and peers of one size work on, allocated once.

Steps of a training run have new gradients every time. So each call is given another gradient:
a window of one long Gaussian vector, moved on by some pages, which costs no memory and leaves
none of the last call's choices (thresholds, scales, indices) right by accident.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import cycle

import numpy as np
import torch

from benchmarks.kernels.device import CPU, BenchDevice
from compressa.codecs import Draw

_SEED = 3
_TILE_ELEMS = 1 << 24  # numbers are drawn once, and repeated: drawing takes longer than measuring
_WINDOWS = 16
_MOVE_ELEMS = 4096  # keeps the alignment to pages that large tensors have

Turns = Iterator[tuple[torch.Tensor, Draw]]


class Operands:
    """Gradients, a residual, a payload and an output of `elems` elements; and the yardstick's.

    Attributes:
        elems: Number of elements.
        device: Where they lie.
        gradient: The first window; float32, unless they are `of` another dtype.
        residual: float32.
        out: float32.
    """

    def __init__(self, elems: int, device: BenchDevice = CPU) -> None:
        self.elems = elems
        self.device = device
        torch_device = self.device.kind
        self._long = gaussian(elems + (_WINDOWS - 1) * _MOVE_ELEMS).to(torch_device)
        self.gradient = self._copied = self._long[:elems]
        self.residual = torch.zeros(elems, device=torch_device)
        self.out = torch.zeros(elems, device=torch_device)
        self._payload = torch.zeros(0, dtype=torch.uint8, device=torch_device)
        self._updated = torch.zeros(elems, device=torch_device)

    def of(self, dtype: torch.dtype) -> Operands:
        """Return operands whose gradients have another dtype; all else is shared."""
        if dtype is self.gradient.dtype:
            return self
        other = copy(self)
        other._long = self._long.to(dtype)
        other.gradient = other._long[: self.elems]
        return other

    def reset(self) -> None:
        """Forget what the case before has left."""
        self.residual.zero_()
        self.out.zero_()

    def stream(self) -> None:
        """Do the yardstick's work once, on memory that no case sees."""
        self.device.stream(self._updated, self._copied)

    def payload(self, size: int) -> torch.Tensor:
        """Return memory for a payload of `size` bytes; all payloads share it."""
        if self._payload.numel() < size:
            self._payload = torch.zeros(size, dtype=torch.uint8, device=self.device.kind)
        return self._payload[:size]

    def turns(self) -> Turns:
        """Return gradients and counters of random bits for one step after the other."""
        starts = range(0, _WINDOWS * _MOVE_ELEMS, _MOVE_ELEMS)
        windows = (self._long[start : start + self.elems] for start in starts)
        return cycle([(x, Draw(_SEED, step, 0, 0, 0)) for step, x in enumerate(windows)])


def gaussian(elems: int) -> torch.Tensor:
    """Return a vector of unit variance, the same in every run."""
    drawn = np.random.Generator(np.random.Philox(_SEED))
    tile = drawn.standard_normal(min(elems, _TILE_ELEMS), dtype=np.float32)
    vector = np.empty(elems, np.float32)
    for low in range(0, elems, tile.size):
        part = vector[low : low + tile.size]
        part[:] = tile[: part.size]
    return torch.from_numpy(vector)
