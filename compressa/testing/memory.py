"""Memory with guard bands, and assertions that say what was wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_GUARD_BYTES = 64
_GUARD_VALUE = 0xA7


def require(condition: bool, sentence: str) -> None:
    """Raise AssertionError with a sentence unless `condition` holds; also under `python -O`."""
    if not condition:
        raise AssertionError(sentence)


class Guarded:
    """A tensor with bytes of a known value before and after it.

    Args:
        elems: Number of elements.
        dtype: Their dtype.
        fill: Value of every byte of the tensor, so that what is not overwritten shows.

    Attributes:
        tensor: 1-D; the only memory that may be written.
    """

    def __init__(self, elems: int, dtype: torch.dtype, fill: int) -> None:
        size = elems * dtype.itemsize
        self._memory = torch.full((size + 2 * _GUARD_BYTES,), _GUARD_VALUE, dtype=torch.uint8)
        inside = self._memory[_GUARD_BYTES : _GUARD_BYTES + size]
        inside.fill_(fill)
        self.tensor = inside.view(dtype)

    @property
    def intact(self) -> bool:
        """Whether nothing was written outside the tensor."""
        bands = (self._memory[:_GUARD_BYTES], self._memory[-_GUARD_BYTES:])
        return all(bool((band == _GUARD_VALUE).all()) for band in bands)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have one shape, one dtype and the same bytes.

    Tells -0 from 0, and a NaN equals one of the same bits. Any strides: elements are compared.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    parts = (part.reshape(-1).view(torch.uint8) for part in (a, b))
    return a.numel() == 0 or torch.equal(*parts)


@contextmanager
def generators_untouched(name: str) -> Iterator[None]:
    """Require that the user's random generators are in the same state afterwards."""
    before = torch.random.get_rng_state(), str(np.random.get_state()), random.getstate()
    yield
    require(torch.equal(before[0], torch.random.get_rng_state()), f"{name} drew from torch.random")
    require(before[1] == str(np.random.get_state()), f"{name} drew from numpy.random")
    require(before[2] == random.getstate(), f"{name} drew from random")
