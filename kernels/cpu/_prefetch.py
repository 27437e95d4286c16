"""A hint to the processor: an address that will be read soon.

The kernels go through a block several times while it lies in the first-level cache. Meanwhile
nothing asks memory for the next blocks, so the hint does; the hardware's own prefetcher has lost
the stream by then. Worth 10 to 15 % of a kernel that is bound by memory.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ._jit import intrinsic, lean_nested

AHEAD = 1024  # elements; 512 and 2048 were slower, on a Sapphire Rapids core
NEAR = 512  # where two loops of a block share the hints
FAR = 4096  # for the second level of the cache: what is only read comes a tenth faster then
LINE_BYTES = 64


def hint(builder: Any, address: Any, *, second_level: bool = False) -> None:
    """Write the instruction: ask for the cache line of an address; any is harmless."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    # To read, for all levels of the cache or all but the first, data and not instructions.
    level = word(2 if second_level else 3)
    builder.call(function, [builder.bitcast(address, byte), word(0), level, word(1)])


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line that holds ``array[index]``; any index is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        hint(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def _per_line(typing: Any, array: Any) -> Any:
    """How many elements a cache line holds: a constant, where ``array.itemsize`` is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.intp, LINE_BYTES * 8 // array.dtype.bitwidth)

    return types.intp(array), generate


@lean_nested
def fetch(array: Any, low: int, high: int) -> None:
    """Ask for elements low to high of an array, or for nothing if it is None."""
    if array is not None:
        for i in range(low, high, _per_line(array)):
            prefetch(array, i)
