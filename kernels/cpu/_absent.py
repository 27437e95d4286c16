"""Values that are None where an array is missing (or is not), decided while the code is compiled.

Numba gives the result of a function that may return None a type of its own, which the loops are
not compiled for.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.imputils import impl_ret_borrowed

from ._intrinsic import intrinsic


def _is_absent(kind: Any) -> bool:
    return isinstance(kind, types.NoneType)


def _only(wanted: Any) -> Any:
    def declare(typing: Any, array: Any, value: Any) -> Any:
        if wanted(array):
            return value(array, value), lambda c, b, s, given: impl_ret_borrowed(
                c, b, value, given[1]
            )
        return types.none(array, value), lambda c, b, s, given: c.get_dummy_value()

    return intrinsic(declare)


only_with = _only(lambda kind: not _is_absent(kind))
"""``only_with(array, value)``: the value, or None if the array is None."""

only_without = _only(_is_absent)
"""``only_without(array, value)``: the value, if the array is None; else None."""


@intrinsic
def first_of(typing: Any, array: Any, other: Any) -> Any:
    """The array, or another one if it is None."""
    source = 1 if _is_absent(array) else 0
    kind = (array, other)[source]
    return kind(array, other), lambda c, b, s, given: impl_ret_borrowed(c, b, kind, given[source])
