"""What goes in, what comes out and what stays behind, as NumPy specifies it: all in float32."""

from __future__ import annotations

import numpy as np

from ._arrays import F32, Gradient

_QUIET = np.uint32(0x7FC0)  # a NaN of bfloat16


def widened(x: Gradient) -> F32:
    """Return a gradient of any kind in float32, exactly."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return x.astype(np.float32)


def effective(x: F32, residual: F32 | None, loss_scale: float) -> F32:
    """Return p = x + loss_scale * residual; the product is rounded before the sum."""
    return x if residual is None else x + np.float32(loss_scale) * residual


def remainder(p: F32, decoded: F32, loss_scale: float) -> F32:
    """Return (p - decoded) * (1 / loss_scale), with 1 / loss_scale rounded to float32 first."""
    return (p - decoded) * (np.float32(1) / np.float32(loss_scale))


def combine(out: F32, decoded: F32, weight: float, add: bool) -> None:
    """Set out = weight * decoded, or out += weight * decoded with the product rounded first."""
    weighted = np.float32(weight) * decoded
    out[:] = out + weighted if add else weighted


def put(x: F32, out: Gradient) -> None:
    """Write ``x`` to ``out``; where that has 16 bits, rounded to nearest and ties to even."""
    if out.dtype != np.uint16:
        out[:] = x.astype(out.dtype)
        return
    bits = x.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    out[:] = np.where(np.isnan(x), _QUIET, rounded)
