"""Scratch: memory that messages arrive in, kept from step to step."""

from __future__ import annotations

from collections.abc import Hashable

import torch


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

    def part(self, number: int) -> Scratch:
        """Return memory apart, for one of several programs that run side by side."""
        if number not in self._parts:
            self._parts[number] = Scratch(self._device)
        return self._parts[number]
