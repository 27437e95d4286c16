"""onebit: the scaled sign, EF-signSGD (Karimireddy et al., 2019), per block.

C(x) = (||x||_1 / d) sign(x). The mean magnitude as scale makes it a contraction on every
vector, spiky ones too; ||x||_2 / sqrt(d) would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le, MultipleOf

from compressa.bias import LARGEST, SMALLEST_NORMAL, Range
from compressa.codecs._kernel import Array, KernelCodec, Parts
from compressa.codecs.base import Contraction, Draw
from compressa.errors import ConfigError
from compressa.kernels import block_count, onebit


@dataclass(frozen=True, kw_only=True)
class OneBit(KernelCodec):
    """Per block of d elements: scale = ||x||_1 / d, one sign bit per element.

    Wire format: ceil(n / block) little-endian float32 scales, then per block of length L
    (the last may be shorter) m = ceil(L / 8) bytes; bit j of byte i is the sign of element
    j * m + i, 1 for negative. Bias: a contraction with delta = ||x||_1^2 / (d ||x||_2^2),
    2 / pi on Gaussian data, at least 1 / d. A block with a NaN or an infinity decodes to NaN.

    Args:
        block: Elements that share a scale.

    Example:
        >>> OneBit(block=1024).wire_bytes(1_000_000)
        128908
    """

    name: ClassVar[str] = "onebit"
    wire_id: ClassVar[int] = 5

    block: Annotated[int, Ge(8), Le(1 << 20), MultipleOf(8)] = 1024

    def __post_init__(self) -> None:
        if self.block < 8 or self.block % 8:
            raise ConfigError(
                f"onebit: block must be a multiple of 8 and at least 8, got {self.block}"
            )

    @property
    def block_elems(self) -> int:
        """Elements that share a scale."""
        return self.block

    def arrays(self, elems: int) -> tuple[int, int]:
        """Bytes of float32 scales, one per block, and of signs, a bit per element."""
        return 4 * block_count(elems, self.block), onebit.sign_bytes(elems, self.block)

    def bias(self, elems: int) -> Contraction:
        """Delta >= 1 / d, reached by a vector with a single non-zero element."""
        block = min(self.block, max(elems, 1))
        return Contraction((1 - 1e-5) / block, Range(block * SMALLEST_NORMAL, LARGEST))

    @property
    def block_form(self) -> onebit.SignForm:
        """Signs."""
        return onebit.SignForm(block=self.block)

    def quantize(
        self, x: Array, parts: Parts, draw: Draw, residual: Array | None, loss_scale: float
    ) -> None:
        """Signs and mean magnitudes."""
        scales, bits = parts
        onebit.sign_quantize(
            x, bits, scales, block=self.block, residual=residual, loss_scale=loss_scale
        )

    def dequantize(self, parts: Parts, out: Array, weight: float, *, add: bool) -> None:
        """Unpack the signs and multiply by the scales."""
        scales, bits = parts
        onebit.sign_dequantize(bits, scales, out, block=self.block, weight=weight, add=add)

    def dequantize_sum(self, parts: Sequence[Parts], out: Array, weight: float) -> None:
        """Unpack and add up; see `KernelCodec.dequantize_sum`."""
        scales, codes = parts
        onebit.sum_signs(codes, scales, out, block=self.block, weight=weight)
