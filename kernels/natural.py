"""Natural compression: stochastic rounding to powers of two (Horvath et al., 2022).

|p| = 2**e (1 + f) becomes 2**(e+1) with probability f, else 2**e: unbiased, with a second moment
of at most 9/8 |p|**2, reached at 4/3 2**e. Only sign and exponent are left: nine bits.

On the wire an exponent is a byte, the biased exponent of float32: 0 stands for 0, 255 for a number
that is not finite. Signs follow in groups of 1024 elements, planar: of a group of ``len`` elements
with m = ceil(len / 8), bit j of byte i is 1 where element j*m + i is negative (p < 0:
neither -0 nor NaN is).

Exact arithmetic on the bits of float32, with p = x + loss_scale * residual (product rounded first):

* magnitude = bits without the sign; exponent = (magnitude + noise) >> 23, with the 23 random bits
  of the element (`philox.random_fractions`): as many as a mantissa has, so that probabilities are
  exact. Below 2**-126 it is 0: the next power up would be far away.
* From 2**127 on, where the next power would be infinite, the exponent is 254. Infinite or NaN: 255,
  and the residual is left as it was.
* New residual = (p - decode) * (1 / loss_scale).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._arrays import F32, U8, Gradient, check_array, check_feedback, check_gradient, check_sum
from ._backends import backend
from ._numpy import combine, effective, pack_planes, put, remainder, unpack_planes, widened
from .philox import FRACTION_BITS, Noise, check_noise, random_fractions

_NORMAL = np.uint32(1 << 23)

GROUP = 1024  # elements whose signs are packed together


def natural_quantize(
    x: Gradient,
    exponents: U8,
    signs: U8,
    *,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Round ``x``, plus what earlier steps left behind, and keep what is left now.

    Example:
        >>> import numpy as np
        >>> exponents, signs = np.empty(3, np.uint8), np.empty(1, np.uint8)
        >>> x = np.array([1, -0.5, 4], np.float32)
        >>> natural_quantize(x, exponents, signs, noise=Noise(0, 0, 0, 0))
        >>> exponents.tolist(), signs.tolist()
        ([127, 126, 129], [2])

    Args:
        x: float32[n], float16[n], or uint16[n] with the bits of bfloat16.
        exponents: uint8[n], overwritten.
        signs: uint8[ceil(n / 8)], overwritten.
        noise: The random numbers.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``noise`` or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    check_array("exponents", exponents, np.uint8, (x.size,), writable=True)
    check_array("signs", signs, np.uint8, ((x.size + 7) // 8,), writable=True)
    check_feedback(residual, x.size, loss_scale)
    check_noise(noise, x.size)
    if kernel := backend("natural", x, exponents, signs, residual):
        kernel.natural_quantize(
            x, exponents, signs, noise=noise, residual=residual, loss_scale=loss_scale
        )
        return
    p = effective(widened(x), residual, loss_scale)
    fractions = np.empty(p.size, np.uint32)
    random_fractions(fractions, noise)
    magnitude = p.view(np.uint32) & np.uint32(0x7FFFFFFF)
    rounded = (magnitude + fractions) >> np.uint32(FRACTION_BITS)
    rounded = np.where(magnitude < _NORMAL, np.uint32(0), rounded)
    finite = np.isfinite(p)
    exponents[:] = np.where(finite, np.minimum(rounded, 254), 255)
    negative = p < 0
    for low in range(0, p.size, GROUP):
        signs[low // 8 : (low + GROUP) // 8] = pack_planes(negative[low : low + GROUP])
    if residual is not None:
        left = remainder(p, _decode(exponents, negative), loss_scale)
        residual[:] = np.where(finite, left, residual)


def natural_dequantize(
    exponents: U8, signs: U8, out: F32, *, weight: float = 1.0, add: bool = False
) -> None:
    """Decode into ``out``, or add to it: out (+)= weight * (+-2**(exponent - 127)).

    Any bytes are valid input: the exponent 0 is 0, 255 is infinite.

    Args:
        exponents: uint8[n].
        signs: uint8[ceil(n / 8)].
        out: float32[n], overwritten, or added to.
        weight: Factor on every decoded value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    check_array("exponents", exponents, np.uint8, (out.size,))
    check_array("signs", signs, np.uint8, ((out.size + 7) // 8,))
    if kernel := backend("natural", exponents, signs, out):
        kernel.natural_dequantize(exponents, signs, out, weight=weight, add=add)
        return
    for low in range(0, out.size, GROUP):
        part = out[low : low + GROUP]
        negative = unpack_planes(signs[low // 8 : (low + GROUP) // 8], part.size)
        combine(part, _decode(exponents[low : low + GROUP], negative), weight, add)


def sum_natural(
    exponents: Sequence[U8], signs: Sequence[U8], out: Gradient, *, weight: float = 1.0
) -> None:
    """Decode several payloads and write their weighted sum: ``out`` goes to memory once.

    A sum begins with 0, and takes the payloads in their order as `natural_dequantize` adds one: in
    float32, each step rounded. Where ``out`` has 16 bits, the sum is rounded to them in the end.

    Args:
        exponents: Of each payload: uint8[n].
        signs: Of each payload: uint8[ceil(n / 8)].
        out: float32[n], float16[n], or uint16[n] for bfloat16; overwritten.
        weight: Factor on every decoded value.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or payloads lack an array.
    """
    check_sum(out, exponents, signs)
    for codes, packed in zip(exponents, signs, strict=True):
        check_array("exponents", codes, np.uint8, (out.size,))
        check_array("signs", packed, np.uint8, ((out.size + 7) // 8,))
    if kernel := backend("natural", out, *exponents, *signs):
        kernel.sum_natural(exponents, signs, out, weight=weight)
        return
    total = np.zeros(out.size, np.float32)
    for codes, packed in zip(exponents, signs, strict=True):
        natural_dequantize(codes, packed, total, weight=weight, add=True)
    put(total, out)


def _decode(exponents: U8, negative: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> F32:
    sign = np.where(negative, np.uint32(1 << 31), np.uint32(0))
    return ((exponents.astype(np.uint32) << np.uint32(23)) | sign).view(np.float32)
