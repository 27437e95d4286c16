"""Memory that a kernel works in, kept from call to call: one buffer per thread, name and dtype.

A buffer grows to what the largest call so far needed and stays, so that calls after the first
ask the system for nothing. Pages that were never touched cost no memory.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from ._backends import device_of

_kept = threading.local()


def scratch(
    name: str, elems: int, dtype: npt.DTypeLike, *, beside: object = None
) -> npt.NDArray[Any]:
    """Return the front of this thread's buffer of a name, with whatever it held before.

    Example:
        >>> first = scratch("example", 10, np.float32)
        >>> np.shares_memory(first, scratch("example", 8, np.float32))
        True

    Args:
        name: What it is for. Two buffers in use at one time need two names.
        elems: Number of elements that are needed.
        dtype: Their dtype; the same for every use of the name.
        beside: An array; if a GPU holds it, so it does the memory, which then comes from the GPU's
            own pool.
    """
    if beside is not None and type(beside) is not np.ndarray and device_of(beside) == "cuda":
        from .cuda._device import device

        memory: npt.NDArray[Any] = device().empty(elems, dtype)
        return memory
    buffers: dict[str, npt.NDArray[Any]] = _kept.__dict__
    buffer = buffers.get(name)
    if buffer is None or buffer.size < elems:
        buffer = buffers[name] = np.empty(elems, dtype)
    return buffer[:elems]
