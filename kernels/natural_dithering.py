"""Natural dithering: random rounding to powers of two times a block's norm (Horvath et al., 2022).

With N the norm of a block and s = ``levels``, |p| / N is rounded at random to one of the two
levels beside it, of

    0, 2**(1-s), ..., 1/4, 1/2, 1,

so that its mean stays: where linear dithering (`blockwise`, "l2" and "max") has s equal steps, the
steps here halve, and as many bits reach down to much smaller values.

A code has 1 + bit_length(s) bits: a level from 0 to s, where j stands for 2**(j-s) and 0 for 0, and
the sign above it, 1 for negative and 0 where the level is 0. Codes on the wire, block after block,
in planes of one bit: of a block of ``len`` elements with m = ceil(len / 8), byte k*m + i has in bit
j the bit k of the code of element j*m + i, or 0 where there is no such element.

Exact arithmetic, in float32 unless said otherwise, with p = x + loss_scale * residual (product
rounded first):

* N = max|p|, or ||p||_2: the root of the squares, summed in float64 by the fixed tree of `onebit`,
  as float32, and at most its largest number. So no |p| is above N.
* t = |p| / N. From 2**(1-s) on, level = ((bits of t + noise) >> 23) - 127 + s, with the 23 random
  bits of the element (`philox.random_fractions`); a level itself is exact.
* Below, level = (rint(min(t * 2**(s-1), 1 - 2**-23) * 2**23) + noise) >> 23, which is 0 or 1.
* decode = N * 2**(level - s). New residual = (p - decode) * (1 / loss_scale).
* All p are 0: N = 0, and codes are 0. An infinite or NaN p: N is NaN, codes are 0, and the block's
  residual is left as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ._arrays import (
    F32,
    I64,
    U8,
    U32,
    Gradient,
    block_count,
    check_array,
    check_feedback,
    check_gradient,
)
from ._backends import backend
from ._numpy import (
    Bits,
    combine,
    effective,
    pack_planes,
    remainder,
    tree_sum,
    unpack_planes,
    widened,
)
from .philox import FRACTION_BITS, Noise, check_noise, random_fractions

_LARGEST = float(np.finfo(np.float32).max)

Norm = Literal["l2", "max"]
MOST_LEVELS = 127  # of codes in a byte; and 2**(1-s) is still a normal number of float32


@dataclass(frozen=True, kw_only=True)
class Dithering:
    """What natural dithering rounds to.

    Attributes:
        levels: s, from 1 to 127.
        block: Elements per block, a multiple of 8.
        norm: l2 or max.

    Raises:
        ValueError: A number is out of its range.
    """

    levels: int
    block: int
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MOST_LEVELS:
            raise ValueError(f"levels must be from 1 to {MOST_LEVELS}, not {self.levels}")
        if self.block < 8 or self.block % 8:
            raise ValueError(f"block must be a multiple of 8, and at least 8, not {self.block}")
        if self.norm not in ("l2", "max"):
            raise ValueError(f"norm must be 'l2' or 'max', not {self.norm!r}")

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 1 + self.levels.bit_length()

    def code_bytes(self, n: int) -> int:
        """Bytes of the codes of ``n`` elements, the last block rounded up to whole planes."""
        return self.bits * -(-n // 8)


def dither(
    x: Gradient,
    codes: U8,
    norms: F32,
    *,
    form: Dithering,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Round ``x``, plus what earlier steps left behind, and keep what is left now.

    Example:
        >>> import numpy as np
        >>> form = Dithering(levels=3, block=8, norm="max")
        >>> x = np.array([4, -2, 0, 1], np.float32)
        >>> codes, norms = np.empty(form.code_bytes(4), np.uint8), np.empty(1, np.float32)
        >>> dither(x, codes, norms, form=form, noise=Noise(0, 0, 0, 0))
        >>> norms.tolist(), [f"{plane:04b}" for plane in codes]  # levels 3, 2, 0, 1; one negative
        ([4.0], ['1001', '0011', '0010'])

    Args:
        x: float32[n], float16[n], or uint16[n] with the bits of bfloat16.
        codes: uint8[form.code_bytes(n)], overwritten.
        norms: float32[ceil(n / block)], overwritten.
        form: What is rounded to.
        noise: The random numbers.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``noise`` or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    _check_payload(x.size, codes, norms, form, writable=True)
    check_feedback(residual, x.size, loss_scale)
    check_noise(noise, x.size)
    if kernel := backend("natural_dithering", x, codes, norms, residual):
        kernel.dither(
            x, codes, norms, form=form, noise=noise, residual=residual, loss_scale=loss_scale
        )
        return
    fractions = np.empty(x.size, np.uint32)
    random_fractions(fractions, noise)
    for b in range(norms.size):
        elements = slice(b * form.block, (b + 1) * form.block)
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, loss_scale)
        norms[b] = _norm(p, form)
        levels = _levels(p, norms[b], fractions[elements], form)
        negative = (p < 0) & (levels > 0)
        values = levels + (negative.astype(np.int64) << (form.bits - 1))
        planes = [pack_planes((values >> k & 1).astype(np.bool_)) for k in range(form.bits)]
        start = form.code_bytes(elements.start)
        codes[start : start + form.code_bytes(p.size)] = np.concatenate(planes)
        if left is not None and not np.isnan(norms[b]):
            left[:] = remainder(p, _decode(levels, negative, norms[b], form), loss_scale)


def undither(
    codes: U8, norms: F32, out: F32, *, form: Dithering, weight: float = 1.0, add: bool = False
) -> None:
    """Decode into ``out``, or add to it: out (+)= weight * (+-N 2**(level - s)), each step rounded.

    Any codes and norms are valid input: a level above s is a number above the norm.

    Args:
        codes: uint8[form.code_bytes(n)].
        norms: float32[ceil(n / block)].
        out: float32[n], overwritten, or added to.
        form: What was rounded to.
        weight: Factor on every decoded value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    _check_payload(out.size, codes, norms, form, writable=False)
    if kernel := backend("natural_dithering", codes, norms, out):
        kernel.undither(codes, norms, out, form=form, weight=weight, add=add)
        return
    for b in range(norms.size):
        part = out[b * form.block : (b + 1) * form.block]
        start = form.code_bytes(b * form.block)
        planes = codes[start : start + form.code_bytes(part.size)].reshape(form.bits, -1)
        bits = [unpack_planes(plane, part.size).astype(np.int64) for plane in planes]
        levels = sum((bit << k for k, bit in enumerate(bits[:-1])), np.zeros(part.size, np.int64))
        combine(part, _decode(levels, bits[-1].astype(np.bool_), norms[b], form), weight, add)


def _check_payload(n: int, codes: U8, norms: F32, form: Dithering, *, writable: bool) -> None:
    check_array("codes", codes, np.uint8, (form.code_bytes(n),), writable=writable)
    blocks = (block_count(n, form.block),)
    check_array("norms", norms, np.float32, blocks, writable=writable)


def _norm(p: F32, form: Dithering) -> np.float32:
    if not np.isfinite(p).all():
        return np.float32(np.nan)
    if form.norm == "max":
        return np.float32(np.abs(p).max())
    return np.float32(min(np.sqrt(tree_sum(p.astype(np.float64) ** 2)), _LARGEST))


def _levels(p: F32, norm: np.float32, fractions: U32, form: Dithering) -> I64:
    if not norm > 0:
        return np.zeros(p.size, np.int64)
    t = np.abs(p) / norm
    raised = (t.view(np.uint32) + fractions) >> FRACTION_BITS
    smallest = np.float32(2.0 ** (form.levels - 1))
    most = np.float32(1 - 2.0**-FRACTION_BITS)
    fixed = np.rint(np.minimum(t * smallest, most) * np.float32(2**FRACTION_BITS))
    level: I64 = np.where(
        t * smallest < np.float32(1),
        (fixed.astype(np.int64) + fractions) >> FRACTION_BITS,
        raised.astype(np.int64) - 127 + form.levels,
    )
    return level


def _decode(levels: I64, negative: Bits, norm: np.float32, form: Dithering) -> F32:
    powers = np.where(levels > 0, np.exp2(levels - form.levels), 0.0).astype(np.float32)
    return np.where(negative, -norm, norm) * powers
