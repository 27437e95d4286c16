"""Part of an array that may be None, with the type that it has.

A plain compiled function that may return None or a slice returns neither but an optional array,
which intrinsics refuse. This one is chosen by the type of its argument.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import overload

from .._arrays import F32


def section(array: F32 | None, low: int, high: int) -> F32 | None:
    """Elements low to high of an array, or None."""
    return None if array is None else array[low:high]


@overload(section, strict=False)
def _section(array: Any, low: Any, high: Any) -> Any:
    if isinstance(array, types.NoneType):
        return lambda array, low, high: None
    return lambda array, low, high: array[low:high]
