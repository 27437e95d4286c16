"""Which implementation runs: chosen by the device that the arrays lie on, imported on first use.

A backend is a sub-package with one module per algorithm, whose functions have the signatures of
the public ones and check nothing. There is no fallback from one backend to another: what is
missing raises and names what to install.

A public function checks its arguments and calls the backend. The rest of its body says in NumPy
what every backend computes, to the bit; it runs within `reference` only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from .device_array import DeviceArray


class KernelUnavailable(RuntimeError):  # noqa: N818 - the event, as in compressa.errors
    """No kernel can run on the device that holds the arrays; the message names the fix."""


@dataclass(frozen=True)
class _Backend:
    package: str
    fix: str


_BACKENDS = {
    "cpu": _Backend("cpu", "install numba: pip install compressa"),
    "cuda": _Backend(
        "cuda",
        "install CuPy (pip install compressa[cuda12]) and a compressa that has kernels for "
        "CUDA, or move the arrays to the CPU",
    ),
}
_USUAL = ((np.ndarray, "cpu"), (DeviceArray, "cuda"))
_specified = ContextVar("specified", default=False)


@contextmanager
def reference() -> Iterator[None]:
    """Have calls done by what specifies them, in NumPy: slow, for comparisons.

    It holds for the calls of the current thread, with arrays in the memory of the host.

    Example:
        >>> import numpy as np
        >>> from compressa.kernels import random_words
        >>> due, found = np.empty(4, np.uint32), np.empty(4, np.uint32)
        >>> with reference():
        ...     random_words(due, seed=1, stream=0, step=0, parameter=0)
        >>> random_words(found, seed=1, stream=0, step=0, parameter=0)
        >>> bool((found == due).all())
        True
    """
    before = _specified.set(True)
    try:
        yield
    finally:
        _specified.reset(before)


def device_of(array: object) -> str:
    """Name of the device that holds ``array``.

    Args:
        array: A NumPy array, or anything with ``__cuda_array_interface__``.

    Returns:
        "cpu" or "cuda".

    Raises:
        TypeError: It is neither. Tensors are passed as ``tensor.numpy()``.
    """
    if isinstance(array, np.ndarray):
        return "cpu"
    if type(array) is DeviceArray or hasattr(array, "__cuda_array_interface__"):
        return "cuda"
    raise TypeError(f"expected a NumPy or CuPy array, got {type(array).__name__}")


def backend(algorithm: str, *arrays: object | None) -> Any:
    """The module that implements ``algorithm`` where all ``arrays`` lie; None within `reference`.

    Args:
        algorithm: Module name, such as "blockwise".
        arrays: Every array argument of the call; None stands for one that was left out.

    Returns:
        The backend's module, or None.

    Raises:
        KernelUnavailable: The device has no backend here, or a library is missing.
        TypeError: An argument is no array.
        ValueError: The arrays lie on different devices.
    """
    if _specified.get():
        return None
    for usual, device in _USUAL:
        for array in arrays:
            if type(array) is not usual and array is not None:
                break
        else:
            return _load(device, algorithm)  # as below, but sooner
    devices = {device_of(array) for array in arrays if array is not None}
    if len(devices) != 1:
        raise ValueError(f"all arrays of a call must lie on one device, not on {sorted(devices)}")
    return _load(devices.pop(), algorithm)


@cache
def _load(device: str, algorithm: str) -> ModuleType:
    chosen = _BACKENDS[device]
    try:
        return importlib.import_module(f"{__package__}.{chosen.package}.{algorithm}")
    except ImportError as error:
        raise KernelUnavailable(
            f"no {algorithm} kernel for device {device!r} ({error}); {chosen.fix}"
        ) from error
