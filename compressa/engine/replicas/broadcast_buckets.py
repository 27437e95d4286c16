"""Broadcast buckets: tensors of any dtype and shape as runs of bytes, each of a bounded length.

How tensors are cut follows from their shapes and dtypes alone, so that all ranks cut alike. Small
tensors are packed together; a large one travels from where it lies, and to where it belongs, if it
is contiguous there, and through a copy of one bucket's length if not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

SMALL_BYTES = 4 << 20
"""A tensor with fewer is packed together with others: its copy costs little."""

_ALIGN_BYTES = 16  # the longest dtype may be viewed at any multiple


class BroadcastBucket:
    """Some tensors, or a part of one, as bytes.

    Args:
        parts: Names and tensors, none of them empty.

    Attributes:
        size_bytes: Length, with what is left free between tensors.
    """

    def __init__(self, parts: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._parts = parts
        sizes = [_aligned(part.nbytes) for _, part in parts]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.size_bytes = sum(sizes) if len(parts) > 1 else parts[0][1].nbytes

    @property
    def name(self) -> str:
        """Name for people: the first tensor's, and how many more there are."""
        more = len(self._parts) - 1
        return self._parts[0][0] + (f" (+{more})" if more else "")

    def open(self, device: torch.device, *, fill: bool) -> torch.Tensor:
        """Return memory for the bytes: that of the tensor itself, if it can be.

        Args:
            device: Where it has to be.
            fill: Whether it has to hold the tensors' values; else it is zero, or as it was.

        Returns:
            uint8, 1-D and contiguous, of `size_bytes`.
        """
        if self._lies_in_place(device):
            part = self._parts[0][1]
            return part.as_strided((part.numel(),), (1,)).view(torch.uint8)
        memory = torch.zeros(self.size_bytes, dtype=torch.uint8, device=device)
        if fill:
            for part, room in self._rooms(memory):
                room.copy_(part)
        return memory

    def close(self, memory: torch.Tensor) -> None:
        """Copy what came into the memory that `open` returned to the tensors it is not of."""
        if not self._lies_in_place(memory.device):
            for part, room in self._rooms(memory):
                part.copy_(room)

    def _lies_in_place(self, device: torch.device) -> bool:
        part = self._parts[0][1]
        plain = part.is_contiguous() and not (part.is_conj() or part.is_neg())
        return len(self._parts) == 1 and plain and part.device == device

    def _rooms(self, memory: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each part, and where its bytes are in `memory`."""
        for (_, part), start in zip(self._parts, self._starts, strict=True):
            room = memory[start : start + part.nbytes]
            yield part, room.view(part.dtype).view(part.shape)


def cut_into_buckets(tensors: Mapping[str, torch.Tensor], most_bytes: int) -> list[BroadcastBucket]:
    """Cut tensors into buckets; empty ones are left out.

    Args:
        tensors: By name, in an order that all ranks share; dense, and without gradients. Of any
            dtype, shape and device; they are filled in place.
        most_bytes: Longest bucket, but for a single element.
    """
    buckets: list[BroadcastBucket] = []
    packed: list[tuple[str, torch.Tensor]] = []
    packed_bytes = 0
    for name, tensor in tensors.items():
        for part in _pieces(tensor, most_bytes):
            if part.nbytes >= SMALL_BYTES:
                buckets.append(BroadcastBucket([(name, part)]))
                continue
            if packed and packed_bytes + _aligned(part.nbytes) > most_bytes:
                buckets.append(BroadcastBucket(packed))
                packed, packed_bytes = [], 0
            packed.append((name, part))
            packed_bytes += _aligned(part.nbytes)
    return [*buckets, BroadcastBucket(packed)] if packed else buckets


def _pieces(tensor: torch.Tensor, most_bytes: int) -> Iterator[torch.Tensor]:
    """Cut a tensor into slices that are short enough, none of them empty."""
    if not tensor.numel():
        return
    if tensor.nbytes <= most_bytes or not tensor.ndim:
        yield tensor
        return
    row_bytes = tensor.nbytes // len(tensor)
    if row_bytes > most_bytes:
        for row in tensor:
            yield from _pieces(row, most_bytes)
    else:
        yield from tensor.split(most_bytes // row_bytes)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
