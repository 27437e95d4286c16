"""DeviceArray: a vector in a GPU's memory, as kernels take it.

It has what the checks and the launchers look at, and nothing else. An array of CuPy's takes
microseconds to make, which is as long as a launch; this takes a fraction of one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class _Flags(NamedTuple):
    """As much of NumPy's flags as the checks look at."""

    aligned: bool
    c_contiguous: bool = True
    writeable: bool = True


_ALIGNED, _ODD = _Flags(True), _Flags(False)


class DeviceArray:
    """Elements that lie side by side in device memory.

    Args:
        pointer: Address of the first element.
        size: Number of elements.
        dtype: Their dtype.
        owner: What keeps the memory allocated: a tensor, or another array.

    Example:
        >>> whole = DeviceArray(0x1000, 16, np.dtype(np.uint8), owner=None)
        >>> part = whole[4:12].view(np.float32)
        >>> hex(part.pointer), part.shape, part.dtype
        ('0x1004', (2,), dtype('float32'))
    """

    __slots__ = ("dtype", "owner", "pointer", "size")

    def __init__(self, pointer: int, size: int, dtype: np.dtype[Any], owner: object) -> None:
        self.pointer = pointer
        self.size = size
        self.dtype = dtype
        self.owner = owner

    def __repr__(self) -> str:
        return f"DeviceArray({self.pointer:#x}, {self.size}, {self.dtype})"

    @property
    def ndim(self) -> int:
        """Always one."""
        return 1

    @property
    def shape(self) -> tuple[int]:
        """The number of elements."""
        return (self.size,)

    @property
    def flags(self) -> _Flags:
        """Contiguous and writeable, and perhaps aligned."""
        return _ODD if self.pointer % self.dtype.itemsize else _ALIGNED

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; work that is not done yet is on the stream that is current."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
        }

    def __getitem__(self, part: slice) -> DeviceArray:
        """Return a part of it, without steps; memory is shared."""
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError("a part of a DeviceArray has no steps")
        place = self.pointer + start * self.dtype.itemsize
        return DeviceArray(place, max(stop - start, 0), self.dtype, self.owner)

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Return the same bytes as elements of another dtype.

        Raises:
            ValueError: They are no whole number of such elements.
        """
        kind = np.dtype(dtype)
        size, rest = divmod(self.size * self.dtype.itemsize, kind.itemsize)
        if rest:
            raise ValueError(f"{self} can not be viewed as {kind}: {rest} bytes would be left")
        return DeviceArray(self.pointer, size, kind, self.owner)
