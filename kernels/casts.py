"""Casts to 16-bit floats and back: IEEE half precision (float16) and bfloat16.

Both round to nearest, ties to even. float16 has 11 bits of precision and ends at 65504, above which
values become infinite; bfloat16 has 8 bits and the range of float32. A NaN stays a NaN, and in
bfloat16 becomes 0x7FC0.

With a residual, p = x + loss_scale * residual is cast, product rounded first, and the new residual
is (p - cast back) * (1 / loss_scale). Where the cast of p is not finite, all of it stays behind, p
* (1 / loss_scale), if the cast of that is finite: a smaller loss scale will send it. Else no step
ever could, and the residual is left as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import F32, Gradient, check_array, check_feedback, check_sum
from ._backends import backend
from ._numpy import combine, effective, put, remainder, widened

Half = npt.NDArray[Any]
"""float16, or uint16 that holds the bits of bfloat16."""


def narrow(x: F32, out: Half, *, residual: F32 | None = None, loss_scale: float = 1.0) -> None:
    """Cast to 16 bits, and keep what that loses.

    Example:
        >>> import numpy as np
        >>> out = np.empty(2, np.uint16)
        >>> narrow(np.array([1.0, -2.0], np.float32), out)
        >>> [hex(bits) for bits in out]
        ['0x3f80', '0xc000']

    Args:
        x: float32[n].
        out: float16[n], or uint16[n] for bfloat16; overwritten.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong.
    """
    check_array("x", x, np.float32)
    _check_half("out", out, x.size, writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("casts", x, out, residual):
        kernel.narrow(x, out, residual=residual, loss_scale=loss_scale)
        return
    p = effective(x, residual, loss_scale)
    put(p, out)
    if residual is not None:
        error = remainder(p, widened(out), loss_scale)
        whole = remainder(p, np.zeros_like(p), loss_scale)
        sendable = np.empty_like(out)
        put(whole, sendable)
        kept = np.where(np.isfinite(widened(sendable)), whole, residual)
        residual[:] = np.where(np.isfinite(widened(out)), error, kept)


def widen(x: Half, out: F32, *, weight: float = 1.0, add: bool = False) -> None:
    """Cast back into ``out``, or add to it: out (+)= weight * x, the product rounded first.

    Args:
        x: float16[n], or uint16[n] for bfloat16.
        out: float32[n], overwritten, or added to.
        weight: Factor on every value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    _check_half("x", x, out.size, writable=False)
    if kernel := backend("casts", x, out):
        kernel.widen(x, out, weight=weight, add=add)
        return
    combine(out, widened(x), weight, add)


def sum_casts(x: Sequence[Half], out: Gradient, *, weight: float = 1.0) -> None:
    """Cast several vectors back and write their weighted sum: ``out`` goes to memory once.

    A sum begins with 0, and takes the vectors in their order as `widen` adds one: in float32, each
    step rounded. Where ``out`` has 16 bits, the sum is rounded to them in the end.

    Args:
        x: float16[n], or uint16[n] for bfloat16, all of one dtype.
        out: float32[n], float16[n], or uint16[n] for bfloat16; overwritten.
        weight: Factor on every value.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_sum(out, x)
    for one in x:
        _check_half("x", one, out.size, writable=False)
        if one.dtype != x[0].dtype:
            raise TypeError(f"all of x must have one dtype, not {x[0].dtype} and {one.dtype}")
    if kernel := backend("casts", out, *x):
        kernel.sum_casts(x, out, weight=weight)
        return
    total = np.zeros(out.size, np.float32)
    for one in x:
        widen(one, total, weight=weight, add=True)
    put(total, out)


def _check_half(name: str, array: Half, size_elems: int, *, writable: bool) -> None:
    if array.dtype not in (np.float16, np.uint16):
        raise TypeError(f"{name} must be float16, or bfloat16 as uint16, not {array.dtype}")
    check_array(name, array, array.dtype, (size_elems,), writable=writable)
