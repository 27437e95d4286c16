"""Linear symmetric quantisation to 8 or 4 bits with one unit per block, rounded to nearest.

With L = 2**(bits-1) - 1 and m the largest magnitude of a block, unit = m / L and the code of p is
the integer nearest to p / unit (half to even). So |p - decode| <= unit/2 up to float rounding, and
a block costs its codes and one float32. Block-wise units are what LoCo, ZeRO++ and 8-bit Adam
(Dettmers et al., ICLR 2022) use: an outlier spoils its own block only.

Codes on the wire, block after block:

* 8 bits: element i is byte i, an int8 in two's complement.
* 4 bits: nibble = integer + 8 (1 to 15), planar: of a block of ``len`` elements with
  half = (len+1)//2, byte i has element i in its low and element i + half in its high nibble; a
  missing last element has nibble 8.

Exact arithmetic, all in float32:

* p = x + scale * residual, product rounded first; p = x without a residual.
* m = 0: unit = 0, all integers 0. m infinite or NaN: unit = NaN, all integers 0, and the residual
  is left as it was, so a step that overflowed decodes to NaN and poisons nothing.
* m >= 2**-100: unit = m / L, integer = rint(p * (L / m)).
* else, so that neither m / L nor L / m is lost to underflow or overflow:
  unit = max(m / L, 2**-149), integer = clip(rint((p * 2**64) / (unit * 2**64)), -L, L).
* decode = integer * unit. New residual = (p - decode) * (1 / scale).
"""

from __future__ import annotations

import numpy as np

from ._arrays import F32, U8, block_count, check_array, check_feedback
from ._backends import backend


def code_bytes(n: int, bits: int, block: int) -> int:
    """Bytes of the codes of ``n`` elements.

    Args:
        n: Number of elements.
        bits: 8 or 4.
        block: Elements per block; even, at least 8.

    Returns:
        n for 8 bits; for 4 bits a byte per pair, an odd last block rounded up.

    Raises:
        ValueError: ``bits`` or ``block`` is not supported.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, not {bits}")
    if block < 8 or block % 2:
        raise ValueError(f"block must be even and at least 8, not {block}")
    return n if bits == 8 else (n + 1) // 2


def quantize_blockwise(
    x: F32,
    codes: U8,
    scales: F32,
    *,
    bits: int,
    block: int,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """Quantise ``x``, plus what earlier steps left behind, and keep what is left now.

    Example:
        >>> import numpy as np
        >>> x = np.array([127, -3.4, 0, 1.5], np.float32)
        >>> codes, scales = np.empty(4, np.uint8), np.empty(1, np.float32)
        >>> quantize_blockwise(x, codes, scales, bits=8, block=8)
        >>> codes.view(np.int8).tolist(), scales.tolist()
        ([127, -3, 0, 2], [1.0])

    Args:
        x: float32[n].
        codes: uint8[code_bytes(n, bits, block)], overwritten.
        scales: float32[ceil(n / block)], overwritten with the units.
        bits: 8 or 4.
        block: Elements per block; even, at least 8.
        residual: float32[n], updated in place; None for no feedback.
        scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``bits``, ``block`` or ``scale`` is wrong.
    """
    check_array("x", x, np.float32)
    check_array("codes", codes, np.uint8, (code_bytes(x.size, bits, block),), writable=True)
    check_array("scales", scales, np.float32, (block_count(x.size, block),), writable=True)
    check_feedback(residual, x.size, scale)
    kernel = backend("blockwise", x, codes, scales, residual)
    kernel.quantize_blockwise(
        x, codes, scales, bits=bits, block=block, residual=residual, scale=scale
    )


def dequantize_blockwise(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    bits: int,
    block: int,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """Decode into ``out``, or add to it: out (+)= weight * (integer * unit), each step rounded.

    Any codes and units are valid input.

    Args:
        codes: uint8[code_bytes(n, bits, block)].
        scales: float32[ceil(n / block)].
        out: float32[n], overwritten, or added to.
        bits: 8 or 4.
        block: Elements per block; even, at least 8.
        weight: Factor on every decoded value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``bits`` or ``block`` is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    check_array("codes", codes, np.uint8, (code_bytes(out.size, bits, block),))
    check_array("scales", scales, np.float32, (block_count(out.size, block),))
    kernel = backend("blockwise", codes, scales, out)
    kernel.dequantize_blockwise(codes, scales, out, bits=bits, block=block, weight=weight, add=add)
