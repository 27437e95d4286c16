"""Memory made of pages: fenced in by inaccessible ones, or folded so that much of it is the same.

Python's `mmap` can do neither, so the C library is asked.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import numpy.typing as npt
import torch

_NONE, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
_FIXED = 0x10  # the same on Linux and macOS; Python has no name for it
_FAILED = ctypes.c_void_p(-1).value
_FENCE_BYTES = 1 << 34  # as far as an index of 32 bits reaches in float32
_FOLD_BYTES = 1 << 22

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(at: int | None, size: int, protection: int, flags: int, file: int = -1) -> int:
    address = _libc.mmap(at, size, protection, flags, file, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size} bytes: {os.strerror(number)}")
    return int(address)


def _array(address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


class Fenced:
    """A tensor whose last byte is the last before 16 GiB of pages that nobody may touch.

    16 GiB before it are out of bounds too, but for what is left of its first page, which holds
    bytes of a known value. Whoever reads or writes elsewhere ends the process. It is never given
    back.

    Args:
        elems: Number of elements.
        dtype: Their dtype.
        fill: Value of every byte of the tensor.

    Attributes:
        tensor: 1-D; the only memory that may be touched.
    """

    _GUARD = 0xA7

    def __init__(self, elems: int, dtype: torch.dtype, fill: int) -> None:
        size = elems * dtype.itemsize
        room = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        fence = _map(None, 2 * _FENCE_BYTES + room, _NONE, _RESERVED)
        memory = _map(fence + _FENCE_BYTES, room, _READ_WRITE, _RESERVED | _FIXED)
        bytes_ = torch.from_numpy(_array(memory, room)).fill_(self._GUARD)
        self._before = bytes_[: room - size]
        self.tensor = bytes_[room - size :].fill_(fill).view(dtype)

    @property
    def intact(self) -> bool:
        """Whether the rest of the first page is as it was."""
        return bool((self._before == self._GUARD).all())


class Folded:
    """A long array of which every 4 MiB are the same 4 MiB of memory.

    So code runs over more than 2^31 elements with the addresses that they have, and what it does
    to one part of the array it does to all.

    Args:
        elems: Number of elements.
        dtype: Their dtype.

    Attributes:
        tensor: 1-D.
        fold: Its first part; all others are the same.
    """

    def __init__(self, elems: int, dtype: torch.dtype) -> None:
        size = elems * dtype.itemsize
        self._mapped_bytes = -(-size // _FOLD_BYTES) * _FOLD_BYTES
        self._address = _map(None, self._mapped_bytes, _NONE, _RESERVED)
        file = os.memfd_create("folded")
        try:
            os.ftruncate(file, _FOLD_BYTES)
            for offset in range(0, self._mapped_bytes, _FOLD_BYTES):
                address = self._address + offset
                _map(address, _FOLD_BYTES, _READ_WRITE, mmap.MAP_SHARED | _FIXED, file)
        finally:
            os.close(file)
        self.tensor = torch.from_numpy(_array(self._address, size)).view(dtype)
        self.fold = self.tensor[: min(elems, _FOLD_BYTES // dtype.itemsize)]

    def close(self) -> None:
        """Give the addresses back; the tensors must not be touched any more."""
        _libc.munmap(self._address, self._mapped_bytes)


def reserved(elems: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a long tensor of zeros that takes memory only where it is written.

    It is never given back.
    """
    size = elems * dtype.itemsize
    return torch.from_numpy(_array(_map(None, size, _READ_WRITE, _RESERVED), size)).view(dtype)
