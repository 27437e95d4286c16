"""Parameters of a launch, where the driver reads them.

The driver is told one address for each parameter, and takes from there as many bytes as the kernel
declares; how parameters lie side by side in the end is its own affair. CuPy's kernels make an
object of each argument of each launch, which takes 5 microseconds for twenty of them. Here the
addresses are worked out once for a kernel, and a launch writes all values with one call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ..device_array import DeviceArray
from ._device import CTA, Argument, Struct

_SLOT_BYTES = 8  # each parameter begins at a multiple of what any of them is aligned to
_Number = np.generic


class _Room:
    """Memory for the parameters of one launch.

    Attributes:
        values: Where they are written.
        addresses: Where the driver finds the addresses of all of them.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.values = ctypes.create_string_buffer(sum(sizes))
        address, addresses = ctypes.addressof(self.values), []
        for size in sizes:
            addresses.append(address)
            address += size
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self.addresses = ctypes.addressof(self._addresses)


class Kernel:
    """A kernel of the current GPU, to be launched from any thread.

    Args:
        function: CuPy's; it keeps the machine code loaded.
        launch: ``cupy.cuda.driver.launchKernel``.
        arguments: Of its first launch; those of later ones are of the same kinds.
    """

    def __init__(
        self, function: Any, launch: Callable[..., object], arguments: tuple[Argument, ...]
    ) -> None:
        kinds = [_kind(value) for value in map(_value, arguments)]
        self._function, self._launch = function, launch
        self._sizes = [struct.calcsize(kind) for kind in kinds]
        self._pack = struct.Struct("@" + "".join(kinds)).pack_into
        self._rooms: list[_Room] = []  # those that no launch uses now

    def start(self, blocks: int, arguments: tuple[Argument, ...], stream: int) -> None:
        """Launch it; the driver has copied the parameters when this returns."""
        values = [
            argument if isinstance(argument, _Number) else _value(argument)
            for argument in arguments
        ]
        try:
            room = self._rooms.pop()
        except IndexError:
            room = _Room(self._sizes)
        self._pack(room.values, 0, *values)
        addresses = room.addresses
        self._launch(self._function.ptr, blocks, 1, 1, CTA, 1, 1, 0, stream, addresses, 0)
        self._rooms.append(room)


def _value(argument: Argument) -> Any:
    """An argument as it is written: an address as an int, a struct as bytes, a number as itself."""
    if type(argument) is DeviceArray:
        return argument.pointer
    if argument is None:
        return 0
    if isinstance(argument, Struct):
        argument = argument.on_gpu
    if isinstance(argument, np.ndarray):
        if argument.size != 1:
            raise TypeError("a kernel takes an array of the CPU only if it is that of one struct")
        return argument.tobytes()
    return argument if isinstance(argument, _Number) else _address(argument)


def _address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


def _kind(value: Any) -> str:
    """How `struct` writes a value, and fills its slots."""
    if isinstance(value, bytes):
        return f"{len(value)}s{-len(value) % _SLOT_BYTES}x"
    if isinstance(value, _Number):
        return f"{value.dtype.char}{_SLOT_BYTES - value.itemsize}x"
    return "P"
