"""What a step takes up from the residual before it is exchanged, and whether all of it is finite.

A codec that sends its own values adds the residual in its own pass. These serve values that are
not encoded, such as those that the owner of a shard contributes to it.
"""

from __future__ import annotations

import numpy as np

from ._arrays import F32, Gradient, check_array, check_feedback
from ._backends import backend
from ._numpy import effective, widened


def absorb_residual(x: F32, residual: F32, kept: F32, loss_scale: float = 1.0) -> None:
    """Add the residual to ``x``, and note what would have to be kept if none of it arrived.

    x = x + loss_scale * residual, product rounded first; kept = x * (1 / loss_scale), with
    1 / loss_scale rounded first, where x is finite now, and the residual elsewhere.

    Args:
        x: float32[n], updated in place.
        residual: float32[n], only read.
        kept: float32[n], overwritten.
        loss_scale: Loss scale that ``x`` carries, and the residual and ``kept`` do not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong.
    """
    check_array("x", x, np.float32, writable=True)
    check_feedback(residual, x.size, loss_scale)
    check_array("kept", kept, np.float32, x.shape, writable=True)
    if kernel := backend("feedback", x, residual, kept):
        kernel.absorb_residual(x, residual, kept, loss_scale)
        return
    x[:] = effective(x, residual, loss_scale)
    back = np.float32(1) / np.float32(loss_scale)
    kept[:] = np.where(np.isfinite(x), x * back, residual)


def all_finite(x: Gradient) -> bool:
    """Whether no element is infinite or NaN.

    Example:
        >>> import numpy as np
        >>> all_finite(np.array([0x7F7F, 0x8001], np.uint16))
        True
        >>> all_finite(np.array([0x7F7F, 0xFF80], np.uint16))
        False

    Args:
        x: float32, float64, float16, or bfloat16 as uint16; of any shape.

    Raises:
        TypeError: The dtype is wrong.
        ValueError: The layout is wrong.
    """
    if x.dtype not in (np.float32, np.float64, np.float16, np.uint16):
        raise TypeError(f"x must be a float, or bfloat16 as uint16, not {x.dtype}")
    check_array("x", x, x.dtype, x.shape)
    if kernel := backend("feedback", x):
        return bool(kernel.all_finite(x))
    return bool(np.isfinite(widened(x) if x.dtype == np.uint16 else x).all())
