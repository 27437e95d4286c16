"""A GPU for tests that hold their arrays on the CPU.

Every array goes to the GPU before a launch, at an address as odd as its own, and comes back after
it; with what lies around it, so that a store beside it shows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from compressa.kernels.cuda._device import Argument, Launch, Struct
from compressa.kernels.cuda._gpu import current
from compressa.kernels.device_array import DeviceArray
from emulated_cuda import first_of, on_device
from kernel_cases import poisoned

_ALIGNMENT = 256


class Mirrored:
    """Runs kernels on the GPU, in whatever order it likes; the seed of an emulation is ignored."""

    def __init__(self, seed: int = 0) -> None:
        import cupy

        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
            cupy.cuda.set_allocator(None)  # a sanitizer then knows where each array ends
        self._cupy = cupy
        self._gpu = current()
        self.processors = (
            1  # few blocks, so that kernels take more than one iteration of their loops
        )

    def launch(self, source: str, name: str, blocks: int, arguments: tuple[Argument, ...]) -> None:
        """See `compressa.kernels.cuda._device.Device.launch`."""
        mirrors: dict[int, _Mirror] = {}
        given = tuple(self._placed(argument, mirrors) for argument in arguments)
        self._gpu.launch(source, name, blocks, given)
        for mirror in mirrors.values():
            mirror.bring_back()

    def empty(self, elems: int, dtype: npt.DTypeLike) -> Any:
        """See `compressa.kernels.cuda._device.Device.empty`; poisoned."""
        return on_device(poisoned(elems, dtype))

    def read(self, array: Any) -> int:
        """See `compressa.kernels.cuda._device.Device.read`: it has come back already."""
        return first_of(array)

    def graph(self, launches: Sequence[Launch]) -> None:
        """See `compressa.kernels.cuda._device.Device.graph`: each launch moves its arrays."""

    def _placed(self, argument: Argument, mirrors: dict[int, _Mirror]) -> Any:
        if isinstance(argument, Struct):
            return argument.filled(lambda array: int(self._placed(array, mirrors)))
        array = argument.owner if isinstance(argument, DeviceArray) else argument
        if not isinstance(array, np.ndarray):
            return argument
        first = argument.pointer if isinstance(argument, DeviceArray) else array.ctypes.data
        whole = _root(array)
        mirror = mirrors.get(whole.ctypes.data)
        if mirror is None:
            mirror = mirrors[whole.ctypes.data] = _Mirror(self._cupy, whole)
        return np.uint64(mirror.address + first - whole.ctypes.data)


class _Mirror:
    """The memory of an array, on the GPU."""

    def __init__(self, cupy: Any, whole: npt.NDArray[Any]) -> None:
        self._bytes = np.frombuffer(whole, np.uint8) if whole.size else np.zeros(0, np.uint8)
        self._writable = whole.flags.writeable
        self._whole = whole
        offset = whole.ctypes.data % _ALIGNMENT
        room = cupy.empty(self._bytes.size + offset + 1, cupy.uint8)
        self._mirror = room[offset : offset + self._bytes.size]
        self._mirror.set(self._bytes)
        self.address = int(room.data.ptr) + offset

    def bring_back(self) -> None:
        """Wait for the GPU, and copy what it has written."""
        found = self._mirror.get()
        if self._writable and self._whole.size:
            self._whole.reshape(-1).view(np.uint8)[:] = found
        else:
            assert (found == self._bytes).all(), "a kernel wrote to what it only reads"


def _root(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array that a part belongs to."""
    while isinstance(array.base, np.ndarray) and array.base.flags.c_contiguous:
        array = array.base
    return array
