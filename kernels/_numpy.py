"""What several specifications share, in NumPy: feedback, signs in planes, and the order of sums.

Feedback is what goes in, what comes out and what stays behind, all in float32.
"""

from __future__ import annotations

import numpy as np

from ._arrays import F32, F64, U8, Gradient

_QUIET = np.uint32(0x7FC0)  # a NaN of bfloat16


def widened(x: Gradient) -> F32:
    """Return a gradient of any kind in float32, exactly."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return x.astype(np.float32)


def effective(x: F32, residual: F32 | None, loss_scale: float) -> F32:
    """Return p = x + loss_scale * residual; the product is rounded before the sum.

    Args:
        x: float32, of any shape.
        residual: float32 of that shape; None for p = x, which is returned itself.
        loss_scale: Rounded to float32 first.
    """
    return x if residual is None else x + np.float32(loss_scale) * residual


def remainder(p: F32, decoded: F32, loss_scale: float) -> F32:
    """Return (p - decoded) * (1 / loss_scale), with 1 / loss_scale rounded to float32 first.

    Args:
        p: float32, of any shape, times the loss scale.
        decoded: float32 of that shape, likewise.
        loss_scale: Rounded to float32 before anything else.
    """
    return (p - decoded) * (np.float32(1) / np.float32(loss_scale))


def combine(out: F32, decoded: F32, weight: float, add: bool) -> None:
    """Set out = weight * decoded, or out += weight * decoded with the product rounded first.

    Args:
        out: float32, of any shape.
        decoded: float32 of that shape.
        weight: Rounded to float32 first.
        add: Which of both.
    """
    weighted = np.float32(weight) * decoded
    out[:] = out + weighted if add else weighted


def put(x: F32, out: Gradient) -> None:
    """Write ``x`` to ``out``; where that has 16 bits, rounded to nearest and ties to even.

    Args:
        x: float32[n].
        out: float32[n], float16[n], or bfloat16 as uint16[n]; a NaN becomes a quiet one there.
    """
    if out.dtype != np.uint16:
        out[:] = x.astype(out.dtype)
        return
    bits = x.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    out[:] = np.where(np.isnan(x), _QUIET, rounded)


Bits = np.ndarray[tuple[int], np.dtype[np.bool_]]


def pack_planes(negative: Bits) -> U8:
    """Return m = ceil(n / 8) bytes, of n bools: bit j of byte i is element j * m + i, or 0."""
    width = -(-negative.size // 8)
    planes = np.zeros(8 * width, np.bool_)
    planes[: negative.size] = negative
    return np.packbits(planes.reshape(8, width).T, axis=1, bitorder="little")[:, 0]


def unpack_planes(bits: U8, size: int) -> Bits:
    """Return what `pack_planes` was given.

    Args:
        bits: uint8[ceil(size / 8)].
        size: How many elements.
    """
    planes = np.unpackbits(bits[:, None], axis=1, bitorder="little").T
    return planes.ravel()[:size].astype(np.bool_)


LANES = 16


def tree_sum(terms: F64) -> float:
    """Sum by 16 strided lanes, each in order, then by halving; all in float64.

    Padding the last row with zeros changes no bits: a lane starts at +0, and +0 + 0 = +0.
    """
    rows = -(-terms.size // LANES)
    padded = np.zeros(rows * LANES)
    padded[: terms.size] = terms
    lanes = np.zeros(LANES)
    for row in padded.reshape(rows, LANES):
        lanes += row
    half = LANES // 2
    while half:
        lanes = lanes[:half] + lanes[half:]
        half //= 2
    return float(lanes[0])
