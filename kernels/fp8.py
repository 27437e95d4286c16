"""Floats of eight bits with one scale per block: e4m3 and e5m2 (Micikevicius et al., 2022).

The largest magnitude of a block is mapped to the format's largest number T (448 or 57344), so the
format's narrow range is spent where the block's values lie. Unlike a linear code, small values keep
their relative precision: |p - decode| <= 2**-(M+1) |p| for M = 3 or 2 bits of mantissa, down to the
subnormals, whose step is constant.

A code is what `torch.float8_e4m3fn` or `torch.float8_e5m2` holds, one byte per element.

Exact arithmetic, in float32:

* p = x + loss_scale * residual, product rounded first; p = x without a residual.
* m = max|p|. Not finite: scale = NaN, all codes 0, the residual is left as it was. m = 0: scale =
  0, all codes 0. Else scale = max(m / T, 2**-126), t = p * (1 / scale), not above T in magnitude.
* v is t rounded to nearest, half to even, in the format, subnormals included. decode = v * scale.
  New residual = (p - decode) * (1 / loss_scale).
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
from ._numpy import combine, effective, put, remainder, widened

_SMALLEST = np.float32(2.0**-126)


@dataclass(frozen=True)
class Format:
    """A floating-point format of eight bits.

    Attributes:
        mantissa: Bits of mantissa.
        bias: Of the exponent.
        largest: The largest finite number.
    """

    mantissa: int
    bias: int
    largest: float


FORMATS = {"e4m3": Format(3, 7, 448.0), "e5m2": Format(2, 15, 57344.0)}


def quantize_fp8(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Format,
    block: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Cast ``x``, plus what earlier steps left behind, and keep what is left now.

    Example:
        >>> import numpy as np
        >>> codes, scales = np.empty(2, np.uint8), np.empty(1, np.float32)
        >>> x = np.array([448, -1], np.float32)
        >>> quantize_fp8(x, codes, scales, form=FORMATS["e4m3"], block=2)
        >>> [hex(code) for code in codes], scales.tolist()
        (['0x7e', '0xb8'], [1.0])

    Args:
        x: float32[n], float16[n], or uint16[n] with the bits of bfloat16.
        codes: uint8[n], overwritten.
        scales: float32[ceil(n / block)], overwritten.
        form: One of `FORMATS`.
        block: Elements per block.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    check_array("codes", codes, np.uint8, (x.size,), writable=True)
    check_array("scales", scales, np.float32, (block_count(x.size, block),), writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("fp8", x, codes, scales, residual):
        kernel.quantize_fp8(
            x, codes, scales, form=form, block=block, residual=residual, loss_scale=loss_scale
        )
        return
    for b in range(scales.size):
        elements = slice(b * block, (b + 1) * block)
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, loss_scale)
        scales[b] = _scale(p, form)
        codes[elements] = _codes(p, scales[b], form)
        if left is not None and not np.isnan(scales[b]):
            left[:] = remainder(p, values(form)[codes[elements]] * scales[b], loss_scale)


def dequantize_fp8(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    form: Format,
    block: int,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """Decode into ``out``, or add to it: out (+)= weight * (v * scale), each step rounded.

    Any codes and scales are valid input: codes that are no numbers decode to NaN or an infinity.

    Args:
        codes: uint8[n].
        scales: float32[ceil(n / block)].
        out: float32[n], overwritten, or added to.
        form: One of `FORMATS`.
        block: Elements per block.
        weight: Factor on every decoded value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    check_array("codes", codes, np.uint8, (out.size,))
    check_array("scales", scales, np.float32, (block_count(out.size, block),))
    if kernel := backend("fp8", codes, scales, out):
        kernel.dequantize_fp8(codes, scales, out, form=form, block=block, weight=weight, add=add)
        return
    for b in range(scales.size):
        elements = slice(b * block, (b + 1) * block)
        combine(out[elements], values(form)[codes[elements]] * scales[b], weight, add)


def sum_fp8(
    codes: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    form: Format,
    block: int,
    weight: float = 1.0,
) -> None:
    """Decode several payloads and write their weighted sum: ``out`` goes to memory once.

    A sum begins with 0, and takes the payloads in their order as `dequantize_fp8` adds one: in
    float32, each step rounded. Where ``out`` has 16 bits, the sum is rounded to them in the end.

    Args:
        codes: Of each payload: uint8[n].
        scales: Of each payload: float32[ceil(n / block)].
        out: float32[n], float16[n], or uint16[n] for bfloat16; overwritten.
        form: One of `FORMATS`.
        block: Elements per block.
        weight: Factor on every decoded value.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or payloads lack an array.
    """
    check_sum(out, codes, scales)
    blocks = block_count(out.size, block)
    for some, own in zip(codes, scales, strict=True):
        check_array("codes", some, np.uint8, (out.size,))
        check_array("scales", own, np.float32, (blocks,))
    if kernel := backend("fp8", out, *codes, *scales):
        kernel.sum_fp8(codes, scales, out, form=form, block=block, weight=weight)
        return
    total = np.zeros(out.size, np.float32)
    for some, own in zip(codes, scales, strict=True):
        dequantize_fp8(some, own, total, form=form, block=block, weight=weight, add=True)
    put(total, out)


def values(form: Format) -> F32:
    """What each of the 256 codes stands for: float32[256]."""
    code = np.arange(256)
    exponent, mantissa = (code & 0x7F) >> form.mantissa, code & ((1 << form.mantissa) - 1)
    spacing = 2.0 ** (np.maximum(exponent, 1) - form.bias - form.mantissa)
    magnitude = (np.where(exponent > 0, 1 << form.mantissa, 0) + mantissa) * spacing
    special = magnitude > form.largest  # e4m3 has NaN only; e5m2 has an infinity below it
    infinite = (form.mantissa == 2) & (mantissa == 0)
    magnitude = np.where(special, np.where(infinite, np.inf, np.nan), magnitude)
    return np.where(code >= 128, -magnitude, magnitude).astype(np.float32)


def _scale(p: F32, form: Format) -> np.float32:
    largest = np.abs(p).max()
    if not np.isfinite(largest):
        return np.float32(np.nan)
    if largest == 0:
        return np.float32(0)
    return max(largest / np.float32(form.largest), _SMALLEST)


def _codes(p: F32, scale: np.float32, form: Format) -> U8:
    if not scale > 0:
        return np.zeros(p.size, np.uint8)
    t = p * (np.float32(1) / scale)
    table = values(form)[:128]
    table = table[np.isfinite(table)].astype(np.float64)
    magnitude = np.minimum(np.abs(t).astype(np.float64), form.largest)
    below = np.searchsorted(table, magnitude, side="right") - 1
    above = np.minimum(below + 1, table.size - 1)
    middle = (table[below] + table[above]) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (below % 2 == 1))
    code = np.where(up, above, below)
    signed: U8 = np.where(np.signbit(t), code + 128, code).astype(np.uint8)
    return signed
