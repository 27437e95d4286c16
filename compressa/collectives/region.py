"""Region: the gradients of a unit as one vector, where they lie.

DDP lays the gradients of a bucket side by side, in the order in which they became ready. A unit's
own order is static, since sums must not depend on DDP's. Who sums by a table goes from place to
place. For all others the tensors are joined: mostly both orders are the same, but for a few small
neighbours, such as the two vectors of a layer norm. Those are exchanged, and the large ones are
worked on where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_MOST_MOVED = 0.25  # of the elements: to move more in place costs as much as to copy all


class Region:
    """Tensors, which are a vector to whoever sums them.

    Args:
        elems: Elements of all tensors together.
        dtype: Their dtype.
        device: Where they are.

    Attributes:
        elems: As given.
        dtype: As given.
        in_place: Whether the tensors of the last step were summed where they are, but for few
            elements.
    """

    def __init__(self, elems: int, dtype: torch.dtype, device: torch.device) -> None:
        self.elems, self.dtype, self.in_place = elems, dtype, True
        self._staging = torch.empty(0, dtype=dtype, device=device)
        self._tensors: Sequence[torch.Tensor] = ()
        self._places = np.empty(0, np.int64)
        self._moved: list[tuple[torch.Tensor, torch.Tensor]] = []

    def lay(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take a step's tensors, each where it is, until `split`.

        Args:
            tensors: 1-D, contiguous.
        """
        self._tensors = tensors

    def where(self) -> tuple[int, int]:
        """Return where the tensors lie, on a CPU.

        Returns:
            The address of them all and 0, or 0 and the address of a table that stays until the next
            call: int64, how many places there are, for each where it begins in the vector and its
            address, and where the last one ends, in bytes.
        """
        places, end, behind = [], 0, -1
        for tensor in self._tensors:
            address, size_bytes = tensor.data_ptr(), tensor.nbytes
            if address != behind:
                places += [end, address]
            end, behind = end + size_bytes, address + size_bytes
        if len(places) == 2:
            return places[1], 0
        self._places = np.array([len(places) // 2, *places, end], np.int64)
        return 0, int(self._places.ctypes.data)

    def join(self) -> torch.Tensor:
        """Return one vector of all elements, in the order of the tensors.

        These hold nothing of use until `split`.
        """
        tensors = self._tensors
        flat = _span(tensors)
        slices = None if flat is None else torch.split(flat, _lengths(tensors))
        self.in_place = slices is not None and self._move_few(tensors, slices)
        if not self.in_place:
            flat = self._copy(tensors)
            self._moved = list(zip(tensors, torch.split(flat, _lengths(tensors)), strict=True))
        assert flat is not None
        return flat

    def split(self) -> None:
        """Bring the elements of a vector that was joined back to the tensors; end the step."""
        sources = [part.clone() if self.in_place else part for _, part in self._moved]
        for (tensor, _), source in zip(self._moved, sources, strict=True):
            tensor.copy_(source)
        self._moved, self._tensors = [], ()

    def _move_few(self, tensors: Sequence[torch.Tensor], slices: Sequence[torch.Tensor]) -> bool:
        """Bring the few that lie elsewhere to their slices; return whether they are few."""
        pairs = zip(tensors, slices, strict=True)
        moved = [(t, part) for t, part in pairs if t.data_ptr() != part.data_ptr()]
        if sum(tensor.numel() for tensor, _ in moved) > _MOST_MOVED * self.elems:
            return False
        values = [tensor.clone() for tensor, _ in moved]
        for (_, part), value in zip(moved, values, strict=True):
            part.copy_(value)
        self._moved = moved
        return True

    def _copy(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if self._staging.numel() == 0:
            self._staging = self._staging.new_empty(self.elems)
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
