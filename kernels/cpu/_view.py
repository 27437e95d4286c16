"""Slices that cost nothing.

A slice that numba makes counts references to its memory, with an atomic instruction or two; made
for every 64 elements, that is slower than the work on them. The arrays of a call outlive the call,
so a kernel needs no count.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.np.arrayobj import make_array, populate_array

from ._intrinsic import intrinsic


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
