"""Slices that cost nothing.

A slice that numba makes counts references to its memory, with an atomic instruction or two; made
for every 64 elements, that is slower than the work on them. The arrays of a call outlive the call,
so a kernel needs no count.

Values that are None where an array is missing (or is not) are decided while the code is compiled:
numba gives the result of a function that may return None a type of its own, which the loops are
not compiled for.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed
from numba.np.arrayobj import make_array, populate_array

from ._jit import intrinsic


@intrinsic
def view(typing: Any, array: Any, low: Any, high: Any) -> Any:
    """``array[low:high]`` of a contiguous array, for 0 <= low <= high <= size; None of None."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if isinstance(array, types.NoneType):
            return context.get_dummy_value()
        whole = make_array(array)(context, builder, arguments[0])
        piece = make_array(array)(context, builder)
        populate_array(
            piece,
            data=builder.gep(whole.data, [arguments[1]]),
            shape=[builder.sub(arguments[2], arguments[1])],
            strides=cgutils.unpack_tuple(builder, whole.strides, 1),
            itemsize=whole.itemsize,
            meminfo=None,
            parent=None,
        )
        return piece._getvalue()

    return array(array, types.intp, types.intp), generate


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
