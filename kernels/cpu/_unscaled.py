"""What a sparse selection compares, and keeps until it is sent, in one look at the vector.

    q = (x + loss_scale * residual) * (1 / loss_scale)

``x`` is float32, or the bits of 16-bit floats; it is None where the residual holds q already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from .._arrays import F32, U64
from ._feedback import Factors, Values, effective
from ._jit import intrinsic, lean_nested
from ._lanes import Largest
from ._vector import for_rows, hints_of, memory, spread
from ._view import only_without, view

INFINITY = 0x7F800000
_AHEAD = 512  # elements; 128 to 2048 were slower, on a Sapphire Rapids core
_NOTHING = np.float32(0)


@lean_nested
def unscaled(x: Values | None, residual: F32 | None, factors: Factors, i: int) -> np.float32:
    """Element i of q."""
    if x is not None:
        return np.float32(effective(x, residual, factors[0], i) * factors[1])
    if residual is not None:
        return np.float32(residual[i])
    return _NOTHING


@intrinsic
def _look(
    typing: Any,
    x: Any,
    residual: Any,
    loss_scale: Any,
    back: Any,
    room: Any,
    sizes: Any,
    flags: Any,
    least: Any,
    now: Any,
    left: Any,
    position: Any,
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        streams: Any = (
            memory(context, builder, signature.args[i], arguments[i]) for i in (0, 1, 4, 5, 6)
        )
        source, kept, target, magnitudes, flagged = streams
        largest = Largest(builder)

        def row(at: Any, lanes: int) -> None:
            before: Any = None if kept is None else kept.read(at, lanes)
            q: Any = before
            if source is not None:
                p = source.read(at, lanes)
                if kept is not None:
                    p = p + spread(builder, arguments[2], lanes) * before
                q = p * spread(builder, arguments[3], lanes)
            largest.add(q, at)
            bits = q.magnitude().words()
            if source is not None and kept is not None:
                kept.write(at, q.where(bits.is_below(INFINITY), before))
            if target is not None:
                target.write(at, q)
            if magnitudes is not None:
                magnitudes.write(at, q.magnitude())
            if flagged is not None:
                flagged.write_flags(at, bits.reaches(spread(builder, arguments[7], lanes)))

        size = (kept if source is None else source).size
        for_rows(builder, size, row, hints_of(context, builder, signature, arguments))
        return largest.result()

    arguments = x, residual, loss_scale, back, room, sizes, flags, least, now, left, position
    return types.uint32(*arguments), generate


@lean_nested
def look(
    x: Values | None,
    residual: F32 | None,
    factors: Factors,
    low: int,
    high: int,
    room: F32,
    sizes: F32 | None,
    flags: U64 | None,
    least: np.uint32,
) -> np.uint32:
    """Make q from ``low`` to ``high``, and ask memory for what comes next.

    Args:
        x: The vector.
        residual: Added to it; receives q where that is finite, and is where q is found then.
        factors: The loss scale, and one over it.
        low: The first element.
        high: The end.
        room: Receives q if there is no residual; see `first_of`.
        sizes: Receives the magnitudes; or None.
        flags: 0, and a bit for each element in a word of 64; receives whether its magnitude
            reaches ``least``. Or None.
        least: Magnitude bits.

    Returns:
        The bits of the largest magnitude.
    """
    here, left, ahead = view(x, low, high), view(residual, low, high), low + _AHEAD
    q, (loss_scale, back) = only_without(residual, view(room, 0, high - low)), factors
    top = _look(here, left, loss_scale, back, q, sizes, flags, least, x, residual, ahead)
    return np.uint32(top)
