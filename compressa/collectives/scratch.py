"""Scratch: memory that messages arrive in, kept from step to step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate

import torch

_BESIDE_BYTES = 64  # what lies side by side begins where the widest vectors may


class Scratch:
    """Buffers by name, made when they are first asked for.

    Args:
        device: Where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[Hashable, torch.Tensor] = {}
        self._parts: dict[int, Scratch] = {}

    def room(self, name: Hashable, size_bytes: int) -> torch.Tensor:
        """Return uint8 memory; whoever gives the same name gets the same memory.

        Args:
            name: Whatever tells it from memory that is in use at the same time.
            size_bytes: Its length.
        """
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size_bytes:
            buffer = torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
            self._buffers[name] = buffer
        return buffer[:size_bytes]

    def rooms(self, name: Hashable, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Return several that lie side by side in the memory of one; see `side_by_side`."""
        firsts, end = side_by_side(sizes)
        return _parts(self.room(name, end), firsts, sizes)

    def part(self, number: int) -> Scratch:
        """Return memory apart, for one of several programs that run side by side."""
        if number not in self._parts:
            self._parts[number] = Scratch(self._device)
        return self._parts[number]


def side_by_side(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where in one memory parts of these sizes begin, and where it ends.

    Args:
        sizes: In bytes; parts begin at multiples of 64.

    Example:
        >>> side_by_side([10, 64, 65])
        ([0, 64, 128], 256)
    """
    *firsts, end = accumulate(
        (-(-size // _BESIDE_BYTES) * _BESIDE_BYTES for size in sizes), initial=0
    )
    return firsts, end


def zeros_side_by_side(
    sizes: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Allocate several parts in one memory, zeroed; see `side_by_side`.

    Args:
        sizes: Of each part, in bytes.
        device: Where the memory is.

    Returns:
        All of it, 1-D uint8; and a view for each part, as long as its size.
    """
    firsts, end = side_by_side(sizes)
    memory = torch.zeros(end, dtype=torch.uint8, device=device)
    return memory, _parts(memory, firsts, sizes)


def _parts(memory: torch.Tensor, firsts: Sequence[int], sizes: Sequence[int]) -> list[torch.Tensor]:
    return [memory[first : first + size] for first, size in zip(firsts, sizes, strict=True)]
