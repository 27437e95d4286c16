"""Region: the gradients of a unit as one vector, where they lie if they lie together.

DDP lays the gradients of a bucket side by side, in the order in which they became ready. A unit's
own order is static, since sums must not depend on DDP's. The two are mostly the same, but for
a few small neighbours, such as the two vectors of a layer norm. Those are exchanged, and the
large ones are worked on where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MOST_MOVED = 0.25  # of the elements: to move more in place costs as much as to copy all


class Region:
    """Joins tensors to one vector, and splits it again.

    Args:
        elems: Elements of all tensors together.
        dtype: Their dtype.
        device: Where they are.
    """

    def __init__(self, elems: int, dtype: torch.dtype, device: torch.device) -> None:
        self._elems = elems
        self._staging = torch.empty(0, dtype=dtype, device=device)
        self._apart = False
        self._moved: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def in_place(self) -> bool:
        """Whether the last vector was where the tensors are, but for few elements."""
        return not self._apart

    def join(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one vector of all elements, in the order of the tensors.

        Args:
            tensors: 1-D, contiguous. They hold nothing of use until `split`.
        """
        flat = _span(tensors)
        slices = None if flat is None else torch.split(flat, _lengths(tensors))
        self._apart = slices is None or not self._move_few(tensors, slices)
        if self._apart:
            flat = self._copy(tensors)
            self._moved = list(zip(tensors, torch.split(flat, _lengths(tensors)), strict=True))
        assert flat is not None
        return flat

    def split(self) -> None:
        """Bring the vector's elements back to the tensors of the last `join`; once for each."""
        sources = [part if self._apart else part.clone() for _, part in self._moved]
        for (tensor, _), source in zip(self._moved, sources, strict=True):
            tensor.copy_(source)
        self._moved = []

    def _move_few(self, tensors: Sequence[torch.Tensor], slices: Sequence[torch.Tensor]) -> bool:
        """Bring the few that lie elsewhere to their slices; return whether they are few."""
        pairs = zip(tensors, slices, strict=True)
        moved = [(t, part) for t, part in pairs if t.data_ptr() != part.data_ptr()]
        if sum(tensor.numel() for tensor, _ in moved) > _MOST_MOVED * self._elems:
            return False
        values = [tensor.clone() for tensor, _ in moved]
        for (_, part), value in zip(moved, values, strict=True):
            part.copy_(value)
        self._moved = moved
        return True

    def _copy(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if self._staging.numel() == 0:
            self._staging = self._staging.new_empty(self._elems)
        return torch.cat(list(tensors), out=self._staging)


def _span(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the memory of all tensors as one, if they lie side by side in any order."""
    ordered = sorted(tensors, key=torch.Tensor.storage_offset)
    first = ordered[0]
    storage, offset = first.untyped_storage().data_ptr(), first.storage_offset()
    for tensor in ordered:
        if tensor.untyped_storage().data_ptr() != storage or tensor.storage_offset() != offset:
            return None
        offset += tensor.numel()
    return first.as_strided((offset - first.storage_offset(),), (1,))


def _lengths(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]
