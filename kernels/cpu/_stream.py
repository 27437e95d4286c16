"""Stores past the cache, for large arrays that are overwritten and not read soon.

A plain store brings its line to the cache first, so that memory is passed over twice. Where ranks
share the memory's bandwidth, decoding takes a third less time without that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from .._arrays import F32
from ._jit import inlined, intrinsic
from ._prefetch import LINE_BYTES
from ._vector import LANES, lanes_of

LEAST_ELEMS = 1 << 18  # what is shorter may be read while the second-level cache still holds it

_ROW = lanes_of(ir.FloatType(), LANES)


def room_to_stream(out: F32, block: int) -> F32:
    """Memory to make a block in, before it is streamed to an array.

    It is empty where streaming is not worth it, or blocks do not begin where lines do.
    """
    long = out.size >= LEAST_ELEMS and block % LANES == 0
    fits = long and out.ctypes.data % LINE_BYTES == 0
    return np.empty(block if fits else 0, np.float32)


@intrinsic
def _stream_row(typing: Any, source: Any, out: Any, at: Any) -> Any:
    """Write ``source[at : at + 16]`` to the same index of ``out``, the beginning of a line."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def row(argument: int) -> Any:
            array = context.make_array(signature.args[argument])
            data = array(context, builder, arguments[argument]).data
            return builder.bitcast(builder.gep(data, [arguments[2]]), _ROW.as_pointer())

        stored = builder.store(builder.load(row(0), align=4), row(1), align=LINE_BYTES)
        once = builder.module.add_metadata([ir.IntType(32)(1)])
        stored.set_metadata("nontemporal", once)
        return context.get_dummy_value()

    return types.void(source, out, types.intp), generate


@inlined
def stream(source: F32, out: F32) -> None:
    """Write as much of ``source`` to ``out`` as that has room for."""
    whole = out.size // LANES * LANES
    for i in range(0, whole, LANES):
        _stream_row(source, out, i)
    for i in range(whole, out.size):
        out[i] = source[i]


@intrinsic
def settle(typing: Any) -> Any:
    """Have all that was stored past the cache be seen by other threads before what follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
