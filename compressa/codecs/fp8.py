"""fp8: eight-bit floats with a scale per block (Micikevicius et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from compressa.bias import SMALLEST_NORMAL, Range
from compressa.codecs import bounds
from compressa.codecs._kernel import Array, KernelCodec, Parts
from compressa.codecs.base import Contraction, Draw
from compressa.errors import ConfigError
from compressa.kernels import block_count, fp8


@dataclass(frozen=True, kw_only=True)
class Fp8(KernelCodec):
    """Per block: scale = max|x| / T, decode = scale * fp8(x / scale).

    T is the largest number of the format. Small values keep their relative precision, where those
    of a linear code vanish.

    Wire format: ceil(n / block) little-endian float32 scales, then n bytes as in
    `torch.float8_e4m3fn` or `torch.float8_e5m2`. Bias: relative error at most 1 / 17 (e4m3) or
    1 / 9 (e5m2) in the normal range, which begins 2^-15 (e4m3) or 2^-30 (e5m2) below the block's
    maximum; a contraction. A block with a NaN or an infinity decodes to NaN.

    Args:
        format: e4m3: three bits of mantissa; e5m2: two, and more range.
        block: Elements that share a scale.

    Example:
        >>> Fp8(block=128).wire_bytes(1000)
        1032
    """

    name: ClassVar[str] = "fp8"
    wire_id: ClassVar[int] = 9

    format: Literal["e4m3", "e5m2"] = "e4m3"
    block: Annotated[int, Ge(8), Le(65536)] = 128

    def __post_init__(self) -> None:
        if self.format not in fp8.FORMATS:
            raise ConfigError(f"fp8: format must be e4m3 or e5m2, got {self.format!r}")
        if self.block < 8:
            raise ConfigError(f"fp8: block must be at least 8, got {self.block}")

    @property
    def block_elems(self) -> int:
        """Elements that share a scale."""
        return self.block

    @property
    def recorded(self) -> bool:
        """There is."""
        return True

    def arrays(self, elems: int) -> tuple[int, int]:
        """Bytes of float32 scales, one per block, and of codes, one per element."""
        return 4 * block_count(elems, self.block), elems

    def bias(self, elems: int) -> Contraction:
        """The largest is exact; another errs by at most half a unit in the last place.

        Relative to its square that is most at 1 + h, h = 2^-(mantissa + 1), times a power of two;
        and most beside the largest, T, where that is the largest power up to T.
        """
        form = fp8.FORMATS[self.format]
        half_ulp, others = 2.0 ** -(form.mantissa + 1), min(self.block, max(elems, 1)) - 1
        largest = 2.0 * math.frexp(form.largest)[0]
        error = others * half_ulp**2 / (largest**2 + others * (1.0 + half_ulp) ** 2)
        range_ = Range(form.largest * SMALLEST_NORMAL, bounds.LARGEST_BLOCK)
        return Contraction(1.0 - error * bounds.ROUNDING, range_)

    def quantize(
        self, x: Array, parts: Parts, draw: Draw, residual: Array | None, loss_scale: float
    ) -> None:
        """Cast."""
        scales, codes = parts
        fp8.quantize_fp8(
            x,
            codes,
            scales,
            form=fp8.FORMATS[self.format],
            block=self.block,
            residual=residual,
            loss_scale=loss_scale,
        )

    def dequantize(self, parts: Parts, out: Array, weight: float, *, add: bool) -> None:
        """Cast back and multiply by the scales."""
        scales, codes = parts
        form = fp8.FORMATS[self.format]
        fp8.dequantize_fp8(codes, scales, out, form=form, block=self.block, weight=weight, add=add)

    def dequantize_sum(self, parts: Sequence[Parts], out: Array, weight: float) -> None:
        """Unpack and add up; see `KernelCodec.dequantize_sum`."""
        scales, codes = parts
        form = fp8.FORMATS[self.format]
        fp8.sum_fp8(codes, scales, out, form=form, block=self.block, weight=weight)
