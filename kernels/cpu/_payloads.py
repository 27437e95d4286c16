"""Several payloads at once: a sum that goes to memory once, however many there are.

Compiled code takes their arrays by address, so that it is the same for any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import cgutils, types
from numba.np.arrayobj import make_array, populate_array

from .._arrays import F32, I64
from ._jit import inlined, intrinsic, lean_nested
from ._values import Values, bits_of, store
from ._view import view


def addresses(arrays: Sequence[npt.NDArray[Any]]) -> I64:
    """Where the arrays begin."""
    return np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)


def room_for_sums(out: Values, most: int) -> tuple[F32, Values | None]:
    """Where to make sums, at most so many at a time, and where to round them to.

    Sums in float32 are made in place, and rounded to None.
    """
    if out.dtype == np.float32:
        return out, None
    return np.empty(most, np.float32), bits_of(out)


@intrinsic
def at(typing: Any, like: Any, address: Any, size: Any) -> Any:
    """The ``size`` elements at an address, as an array of the type of ``like``; None of None."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if isinstance(like, types.NoneType):
            return context.get_dummy_value()
        piece = make_array(like)(context, builder)
        size_bytes = cgutils.intp_t(like.dtype.bitwidth // 8)
        populate_array(
            piece,
            data=builder.inttoptr(arguments[1], piece.data.type),
            shape=[arguments[2]],
            strides=[size_bytes],
            itemsize=size_bytes,
            meminfo=None,
            parent=None,
        )
        return piece._getvalue()

    return like(like, types.intp, types.intp), generate


@lean_nested
def first_of_sums(rounded: Values | None, low: int) -> int:
    """Where the sums of the elements from low on are made."""
    return low if rounded is None else 0


@inlined
def finish(part: F32, rounded: Values | None, low: int) -> None:
    """Round the sums of the elements from low on, where that is due."""
    if rounded is not None:
        to = view(rounded, low, low + part.size)
        for i in range(part.size):
            store(to, i, part[i])
