"""DeviceArray: a vector in a GPU's memory, or a matrix, as kernels take it.

It has what the checks and the launchers look at, and nothing else. An array of CuPy's takes
microseconds to make, which is as long as a launch; this takes a fraction of one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt


class _Flags(NamedTuple):
    """As much of NumPy's flags as the checks look at; `carray` is all of the others."""

    carray: bool
    aligned: bool
    c_contiguous: bool = True
    writeable: bool = True


_ALIGNED, _ODD = _Flags(True, True), _Flags(False, False)


class DeviceArray:
    """Elements that lie side by side in device memory; of a matrix, row after row.

    Args:
        pointer: Address of the first element.
        size: Number of elements.
        dtype: Their dtype.
        owner: What keeps the memory allocated: a tensor, or another array.
        shape: Of an array that is no vector.

    Example:
        >>> whole = DeviceArray(0x1000, 16, np.dtype(np.uint8), owner=None)
        >>> part = whole[4:12].view(np.float32)
        >>> hex(part.pointer), part.shape, part.dtype
        ('0x1004', (2,), dtype('float32'))
        >>> whole.reshape(2, 8).shape
        (2, 8)
    """

    __slots__ = ("_shape", "dtype", "owner", "pointer", "size")

    def __init__(
        self,
        pointer: int,
        size: int,
        dtype: np.dtype[Any],
        owner: object,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.pointer = pointer
        self.size = size
        self.dtype = dtype
        self.owner = owner
        self._shape = shape  # None of a vector: vectors are made by the thousand, and shaped seldom

    def __repr__(self) -> str:
        size = self.size if self._shape is None else self._shape
        return f"DeviceArray({self.pointer:#x}, {size}, {self.dtype})"

    @property
    def ndim(self) -> int:
        """One of a vector, two of a matrix."""
        return 1 if self._shape is None else len(self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """How long it is in each dimension."""
        return (self.size,) if self._shape is None else self._shape

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
        """Return a part of a vector, without steps; memory is shared."""
        if self._shape is not None:
            self._refuse("cut")
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError("a part of a DeviceArray has no steps")
        address = self.pointer + start * self.dtype.itemsize
        return DeviceArray(address, stop - start if stop > start else 0, self.dtype, self.owner)

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Return the same bytes of a vector as elements of another dtype.

        Raises:
            ValueError: They are no whole number of such elements.
        """
        if self._shape is not None:
            self._refuse("viewed as another dtype")
        kind = np.dtype(dtype)
        size, rest = divmod(self.size * self.dtype.itemsize, kind.itemsize)
        if rest:
            raise ValueError(f"{self} can not be viewed as {kind}: {rest} bytes would be left")
        return DeviceArray(self.pointer, size, kind, self.owner)

    def reshape(self, *shape: int) -> DeviceArray:
        """Return the same elements in another shape; ``reshape(size)`` makes a vector again.

        Raises:
            ValueError: Another number of elements would fit in.
        """
        if min(shape, default=0) < 0 or math.prod(shape) != self.size:
            raise ValueError(f"{self} can not have shape {shape}: it has {self.size} elements")
        memory = self.pointer, self.size, self.dtype, self.owner
        return DeviceArray(*memory, None if len(shape) == 1 else shape)

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"{self} is no vector and can not be {what}: reshape it first")
