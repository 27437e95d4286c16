"""One bit per element with one scale per block: the scaled sign of EF-signSGD.

C(p) = (||p||_1 / len) * sign(p) within each block (Karimireddy, Rebjock, Stich and Jaggi, "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019). The scale minimises
||p - C(p)||, and C is a contraction with exactly delta = ||p||_1^2 / (len * ||p||_2^2), so it needs
error feedback; sign(0) = +1.

Bits on the wire, block after block, planar: of a block of ``len`` elements with m = ceil(len / 8),
bit j of byte i is 1 where element j*m + i is negative (p < 0, so not for -0), and 0 where there is
no such element.

Exact arithmetic:

* p = x + loss_scale * residual in float32, product rounded first; p = x without a residual.
* ||p||_1 in float64 by a fixed tree: lane l of 16 sums |p| over elements l, l+16, l+32, ... in
  order; then lane j takes in lane j + half for half = 8, 4, 2, 1. The block's scale is
  float32(sum / len). If any p is infinite or NaN, the scale is NaN, all bits are 0, and the
  residual is left as it was.
* decode = +scale or -scale. New residual = (p - decode) * (1 / loss_scale) in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._arrays import (
    F32,
    U8,
    Gradient,
    block_count,
    check_array,
    check_feedback,
    check_gradient,
    check_sum,
)
from ._backends import backend
from ._numpy import (
    combine,
    effective,
    pack_planes,
    put,
    remainder,
    tree_sum,
    unpack_planes,
    widened,
)


@dataclass(frozen=True, kw_only=True)
class SignForm:
    """What the signs of a list of vectors look like; see `multi_tensor`.

    Attributes:
        block: Elements per block; a multiple of 8.

    Raises:
        ValueError: The block is another number.
    """

    block: int

    def __post_init__(self) -> None:
        sign_bytes(0, self.block)

    def code_bytes(self, n: int) -> int:
        """Bytes of the signs of ``n`` elements."""
        return sign_bytes(n, self.block)


def sign_bytes(n: int, block: int) -> int:
    """Bytes of the signs of ``n`` elements.

    Args:
        n: Number of elements.
        block: Elements per block; a multiple of 8.

    Returns:
        One byte per eight elements, the last block rounded up.

    Raises:
        ValueError: ``block`` is not a positive multiple of 8.
    """
    if block < 8 or block % 8:
        raise ValueError(f"block must be a positive multiple of 8, not {block}")
    return (n + 7) // 8


def sign_quantize(
    x: Gradient,
    bits: U8,
    scales: F32,
    *,
    block: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Reduce ``x``, plus what earlier steps left behind, to signs, and keep what is left now.

    Example:
        >>> import numpy as np
        >>> bits, scales = np.empty(1, np.uint8), np.empty(1, np.float32)
        >>> sign_quantize(np.array([1, -2, 3], np.float32), bits, scales, block=8)
        >>> bits.tolist(), scales.tolist()
        ([2], [2.0])

    Args:
        x: float32[n], float16[n], or uint16[n] with the bits of bfloat16.
        bits: uint8[sign_bytes(n, block)], overwritten.
        scales: float32[ceil(n / block)], overwritten.
        block: Elements per block; a multiple of 8.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``block`` or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    check_array("bits", bits, np.uint8, (sign_bytes(x.size, block),), writable=True)
    check_array("scales", scales, np.float32, (block_count(x.size, block),), writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("onebit", x, bits, scales, residual):
        kernel.sign_quantize(x, bits, scales, block=block, residual=residual, loss_scale=loss_scale)
        return
    for b in range(scales.size):
        elements = slice(b * block, (b + 1) * block)
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, loss_scale)
        scales[b] = _mean_magnitude(p)
        packed = pack_planes((p < 0) & np.isfinite(scales[b]))
        bits[b * block // 8 : (b + 1) * block // 8] = packed
        if left is not None and np.isfinite(scales[b]):
            left[:] = remainder(p, _decode(packed, p.size, scales[b]), loss_scale)


def sign_dequantize(
    bits: U8, scales: F32, out: F32, *, block: int, weight: float = 1.0, add: bool = False
) -> None:
    """Decode into ``out``, or add to it: out (+)= weight * (+scale or -scale), each step rounded.

    Any bits and scales are valid input.

    Args:
        bits: uint8[sign_bytes(n, block)].
        scales: float32[ceil(n / block)].
        out: float32[n], overwritten, or added to.
        block: Elements per block; a multiple of 8.
        weight: Factor on every decoded value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``block`` is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    check_array("bits", bits, np.uint8, (sign_bytes(out.size, block),))
    check_array("scales", scales, np.float32, (block_count(out.size, block),))
    if kernel := backend("onebit", bits, scales, out):
        kernel.sign_dequantize(bits, scales, out, block=block, weight=weight, add=add)
        return
    for b in range(scales.size):
        part = out[b * block : (b + 1) * block]
        packed = bits[b * block // 8 : (b + 1) * block // 8]
        combine(part, _decode(packed, part.size, scales[b]), weight, add)


def sum_signs(
    bits: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    block: int,
    weight: float = 1.0,
) -> None:
    """Decode several payloads and write their weighted sum: ``out`` goes to memory once.

    A sum begins with 0, and takes the payloads in their order as `sign_dequantize` adds one: in
    float32, each step rounded. Where ``out`` has 16 bits, the sum is rounded to them in the end.

    Args:
        bits: Of each payload: uint8[sign_bytes(n, block)].
        scales: Of each payload: float32[ceil(n / block)].
        out: float32[n], float16[n], or uint16[n] for bfloat16; overwritten.
        block: Elements per block; a multiple of 8.
        weight: Factor on every decoded value.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``block`` is wrong, or payloads lack an array.
    """
    check_sum(out, bits, scales)
    packed_bytes, blocks = sign_bytes(out.size, block), block_count(out.size, block)
    for packed, own in zip(bits, scales, strict=True):
        check_array("bits", packed, np.uint8, (packed_bytes,))
        check_array("scales", own, np.float32, (blocks,))
    if kernel := backend("onebit", out, *bits, *scales):
        kernel.sum_signs(bits, scales, out, block=block, weight=weight)
        return
    total = np.zeros(out.size, np.float32)
    for packed, own in zip(bits, scales, strict=True):
        sign_dequantize(packed, own, total, block=block, weight=weight, add=True)
    put(total, out)


def _mean_magnitude(p: F32) -> np.float32:
    total = tree_sum(np.abs(p).astype(np.float64))
    return np.float32(total / p.size) if np.isfinite(total) else np.float32(np.nan)


def _decode(bits: U8, size: int, scale: np.float32) -> F32:
    return np.where(unpack_planes(bits, size), -scale, scale)
