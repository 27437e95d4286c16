"""Linear quantisation to 8, 4 or 2 bits with one scale per block, to nearest or stochastic.

The code of p is an integer q with p close to q * scale (+ offset). Block-wise scales are what LoCo,
ZeRO++ and 8-bit Adam (Dettmers et al., ICLR 2022) use: an outlier spoils its own block only. Where
the scale comes from makes the method, with L the largest integer:

=========  ==================================  ==========================================
statistic  scale                               method
=========  ==================================  ==========================================
"max"      max|p| / L                          symmetric int8, int4, int2
"range"    (max p - min p) / L, offset min p   max-min (asymmetric); q from 0 to L
"l2"       ||p||_2 / L                         QSGD (Alistarh et al., NeurIPS 2017)
"clipped"  min(max|p|, clip * rms p) / L       TernGrad (Wen et al., NeurIPS 2017): L = 1
=========  ==================================  ==========================================

Rounding to nearest (half to even) gives |p - decode| <= scale / 2 up to float rounding. Stochastic
rounding goes up with the probability of the fraction, to 2**-23: unbiased.

Codes on the wire, block after block, c = 8 / bits codes to a byte, planar: of a block of ``len``
elements with m = ceil(len / c), byte i has element i + j*m in bits j*bits to (j+1)*bits - 1. A code
is q in two's complement with 8 bits, q + 2**(bits-1) with 4 or 2, and plain q with "range"; where
there is no such element, it is that of 0.

Exact arithmetic, in float32 unless said otherwise:

* p = x + loss_scale * residual, product rounded first; p = x without a residual.
* A block with an infinite or NaN p: scale and offset are NaN, all q are 0, and the residual is left
  as it was, so a step that overflowed decodes to NaN and poisons nothing. All 0: scale = 0, q = 0.
* "l2", "clipped": squares summed in float64 by the fixed tree of `onebit`; rms is the root of their
  mean; the scale is at most the largest float32. "range": -0 lies below 0; a difference that
  overflows counts as an infinite p.
* lift = 1 and factor = 1 / scale; where scale < 2**-100, scale is at least 2**-149, lift = 2**64
  and factor = 1 / (scale * lift). Then t = (p * lift - offset * lift) * factor.
* Nearest: q = rint(t). Stochastic: k = trunc(t * 2**23), q = (k + noise) >> 23 with the 23 random
  bits of the element (`philox.random_fractions`). t is limited to -L..L, or 0..L.
* decode = q * scale (+ offset). New residual = (p - decode) * (1 / loss_scale).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    check_sum,
)
from ._backends import backend
from ._numpy import combine, effective, put, remainder, tree_sum, widened
from .philox import FRACTION_BITS, Noise, check_noise, random_fractions

_SMALL = np.float32(2.0**-100)
_SMALLEST = np.float32(2.0**-149)
_LARGEST = float(np.finfo(np.float32).max)
_LIFT = np.float32(2.0**64)
_ONE = np.float32(1)
_STEPS = np.float32(2**FRACTION_BITS)

Statistic = Literal["max", "range", "l2", "clipped"]
STATISTICS: tuple[Statistic, ...] = ("max", "range", "l2", "clipped")


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the codes of a blockwise quantiser look like.

    Attributes:
        bits: 8, 4 or 2.
        block: Elements per block; at least 8, and a multiple of 4 with 2 bits, else even.
        statistic: Where the scale comes from.
        levels: The largest integer L; None for the most that the bits hold.
        clip: Of "clipped": how many root mean squares a value may have.

    Raises:
        ValueError: The form is not supported.
    """

    bits: int
    block: int
    statistic: Statistic = "max"
    levels: int | None = None
    clip: float = 2.5

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8):
            raise ValueError(f"bits must be 2, 4 or 8, not {self.bits}")
        multiple = max(2, 8 // self.bits)
        if self.block < 8 or self.block % multiple:
            raise ValueError(
                f"block must be a multiple of {multiple} and at least 8, not {self.block}"
            )
        if self.statistic not in STATISTICS:
            raise ValueError(f"statistic must be one of {STATISTICS}, not {self.statistic!r}")
        if self.statistic == "range" and self.levels is not None:
            raise ValueError('levels are those of the bits with the statistic "range"')
        if not 1 <= self.top <= self._most:
            raise ValueError(f"{self.bits} bits hold at most {self._most} levels, not {self.top}")
        if not self.clip > 0:
            raise ValueError(f"clip must be positive, not {self.clip}")

    @property
    def top(self) -> int:
        """The largest integer."""
        return self._most if self.levels is None else self.levels

    @property
    def bottom(self) -> int:
        """The smallest integer."""
        return 0 if self.statistic == "range" else -self.top

    @property
    def zero(self) -> int:
        """What is added to an integer before it is packed."""
        return 0 if self.statistic == "range" or self.bits == 8 else 1 << (self.bits - 1)

    @property
    def _most(self) -> int:
        return (1 << self.bits if self.statistic == "range" else 1 << (self.bits - 1)) - 1

    def code_bytes(self, n: int) -> int:
        """Bytes of the codes of ``n`` elements: 8 / bits to a byte, the last block rounded up."""
        return -(-n * self.bits // 8)


def quantize_blockwise(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    noise: Noise | None = None,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Quantise ``x``, plus what earlier steps left behind, and keep what is left now.

    Example:
        >>> import numpy as np
        >>> x = np.array([127, -3.4, 0, 1.5], np.float32)
        >>> codes, scales = np.empty(4, np.uint8), np.empty(1, np.float32)
        >>> quantize_blockwise(x, codes, scales, form=Form(bits=8, block=8))
        >>> codes.view(np.int8).tolist(), scales.tolist()
        ([127, -3, 0, 2], [1.0])

    Args:
        x: float32[n], float16[n], or uint16[n] with the bits of bfloat16.
        codes: uint8[form.code_bytes(n)], overwritten.
        scales: float32[ceil(n / block)], overwritten.
        form: What the codes look like.
        offsets: float32[ceil(n / block)] with the statistic "range", overwritten; else None.
        noise: The random numbers of stochastic rounding; None to round to nearest.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``noise`` or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    check_payload(x.size, codes, scales, offsets, form, writable=True)
    check_feedback(residual, x.size, loss_scale)
    check_noise(noise, x.size)
    if kernel := backend("blockwise", x, codes, scales, offsets, residual):
        kernel.quantize_blockwise(
            x,
            codes,
            scales,
            form=form,
            offsets=offsets,
            noise=noise,
            residual=residual,
            loss_scale=loss_scale,
        )
        return
    fractions = np.zeros(x.size, np.uint32)
    if noise is not None:
        random_fractions(fractions, noise)
    for b in range(scales.size):
        elements = slice(b * form.block, (b + 1) * form.block)
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, loss_scale)
        grid = _grid(p, form)
        q = _integers(p, grid, None if noise is None else fractions[elements], form)
        scales[b] = grid.scale
        if offsets is not None:
            offsets[b] = grid.offset
        codes[b * form.block * form.bits // 8 :][: form.code_bytes(p.size)] = _pack(q, form)
        if left is not None and not np.isnan(grid.scale):
            offset = None if offsets is None else grid.offset
            left[:] = remainder(p, _decode(q.astype(np.float32), grid.scale, offset), loss_scale)


def dequantize_blockwise(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """Decode into ``out``, or add to it: out (+)= weight * (q * scale + offset), each step rounded.

    Any codes, scales and offsets are valid input.

    Args:
        codes: uint8[form.code_bytes(n)].
        scales: float32[ceil(n / block)].
        out: float32[n], overwritten, or added to.
        form: What the codes look like.
        offsets: As in `quantize_blockwise`.
        weight: Factor on every decoded value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    check_payload(out.size, codes, scales, offsets, form, writable=False)
    if kernel := backend("blockwise", codes, scales, offsets, out):
        kernel.dequantize_blockwise(
            codes, scales, out, form=form, offsets=offsets, weight=weight, add=add
        )
        return
    for b in range(scales.size):
        part = out[b * form.block : (b + 1) * form.block]
        packed = codes[b * form.block * form.bits // 8 :][: form.code_bytes(part.size)]
        q = _unpack(packed, part.size, form)
        combine(part, _decode(q, scales[b], None if offsets is None else offsets[b]), weight, add)


def sum_blockwise(
    codes: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    form: Form,
    offsets: Sequence[F32] | None = None,
    weight: float = 1.0,
) -> None:
    """Decode several payloads and write their weighted sum: ``out`` goes to memory once.

    A sum begins with 0, and takes the payloads in their order as `dequantize_blockwise` adds one:
    in float32, each step rounded. Where ``out`` has 16 bits, the sum is rounded to them in the end.

    Example:
        >>> import numpy as np
        >>> codes = [np.array([2, 4], np.int8).view(np.uint8), np.array([1, 0], np.uint8)]
        >>> scales, out = [np.float32([0.5]), np.float32([1.0])], np.empty(2, np.float32)
        >>> sum_blockwise(codes, scales, out, form=Form(bits=8, block=8), weight=0.5)
        >>> out.tolist()
        [1.0, 1.0]

    Args:
        codes: Of each payload: uint8[form.code_bytes(n)].
        scales: Of each payload: float32[ceil(n / block)].
        out: float32[n], float16[n], or uint16[n] for bfloat16; overwritten.
        form: What the codes look like.
        offsets: Of each payload, as in `quantize_blockwise`.
        weight: Factor on every decoded value.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or payloads lack an array.
    """
    check_sum(out, codes, scales, offsets)
    for i, packed in enumerate(codes):
        some = None if offsets is None else offsets[i]
        check_payload(out.size, packed, scales[i], some, form, writable=False)
    if kernel := backend("blockwise", out, *codes, *scales, *(offsets or ())):
        kernel.sum_blockwise(codes, scales, out, form=form, offsets=offsets, weight=weight)
        return
    total = np.zeros(out.size, np.float32)
    for i, packed in enumerate(codes):
        some = None if offsets is None else offsets[i]
        dequantize_blockwise(
            packed, scales[i], total, form=form, offsets=some, weight=weight, add=True
        )
    put(total, out)


def check_payload(
    n: int, codes: U8, scales: F32, offsets: F32 | None, form: Form, *, writable: bool
) -> None:
    """Refuse what is no payload of ``n`` elements; see `check_array`."""
    blocks = (block_count(n, form.block),)
    check_array("codes", codes, np.uint8, (form.code_bytes(n),), writable=writable)
    check_array("scales", scales, np.float32, blocks, writable=writable)
    if (offsets is not None) != (form.statistic == "range"):
        raise ValueError('offsets go with the statistic "range", and with no other')
    if offsets is not None:
        check_array("offsets", offsets, np.float32, blocks, writable=writable)


class _Grid(NamedTuple):
    """A block's scale and offset, and what brings p to them without overflow or underflow."""

    scale: np.float32
    offset: np.float32
    lift: np.float32
    factor: np.float32


def _extremes(p: F32) -> tuple[np.float32, np.float32]:
    """The least and the greatest; -0 lies below 0."""
    bits = p.view(np.int32)
    order = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    return p[order.argmin()], p[order.argmax()]


def _scale(p: F32, largest: np.float32, form: Form) -> np.float32:
    if form.statistic == "max":
        return largest / np.float32(form.top)
    squares = tree_sum(p.astype(np.float64) ** 2)
    length = float(np.sqrt(squares))
    if form.statistic == "clipped":
        length = min(float(largest), form.clip * float(np.sqrt(squares / p.size)))
    return np.float32(min(length / form.top, _LARGEST))


def _grid(p: F32, form: Form) -> _Grid:
    low, high = _extremes(p)
    largest = np.abs(p).max()
    if form.statistic == "range":
        grid = _Grid((high - low) / np.float32(form.top), low, _ONE, _ONE)
        flat = bool(low == high)
    else:
        grid = _Grid(_scale(p, largest, form), np.float32(0), _ONE, _ONE)
        flat = bool(largest == 0)
    if not (np.isfinite(largest) and np.isfinite(grid.scale)):
        return _Grid(np.float32(np.nan), np.float32(np.nan), _ONE, _ONE)
    if flat:
        return grid._replace(scale=np.float32(0))
    if grid.scale < _SMALL:
        grid = grid._replace(scale=max(grid.scale, _SMALLEST), lift=_LIFT)
    return grid._replace(factor=_ONE / (grid.scale * grid.lift))


def _integers(p: F32, grid: _Grid, noise: U32 | None, form: Form) -> I64:
    if not grid.scale > 0:
        return np.zeros(p.size, np.int64)
    t = (p * grid.lift - grid.offset * grid.lift) * grid.factor
    if noise is None:
        q = np.rint(t).astype(np.int64)
    else:
        limited = np.clip(t, np.float32(form.bottom), np.float32(form.top))
        q = (np.trunc(limited * _STEPS).astype(np.int64) + noise) >> FRACTION_BITS
    clipped: I64 = np.clip(q, form.bottom, form.top)
    return clipped


def _pack(q: I64, form: Form) -> U8:
    each = 8 // form.bits
    width = -(-q.size // each)
    planes = np.full(each * width, form.zero, np.int64)
    planes[: q.size] += q
    shifts = form.bits * np.arange(each)[:, None]
    packed: U8 = (planes.reshape(each, width) << shifts).sum(axis=0).astype(np.uint8)
    return packed


def _unpack(codes: U8, size: int, form: Form) -> F32:
    if form.bits == 8 and form.statistic != "range":
        return codes.view(np.int8).astype(np.float32)
    shifts = form.bits * np.arange(8 // form.bits)[:, None]
    planes = (codes.astype(np.int64) >> shifts) & (2**form.bits - 1)
    q: F32 = (planes.ravel()[:size] - form.zero).astype(np.float32)
    return q


def _decode(q: F32, scale: np.float32, offset: np.float32 | None) -> F32:
    return q * scale if offset is None else q * scale + offset
