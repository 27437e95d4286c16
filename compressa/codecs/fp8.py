"""fp8: eight-bit floats with a scale per block (Micikevicius et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Le

from compressa.arrays import as_array
from compressa.bias import SMALLEST_NORMAL, Range
from compressa.codecs import bounds
from compressa.codecs.base import Codec, Contraction, Draw, Granularity
from compressa.codecs.fused import Fused
from compressa.errors import ConfigError
from compressa.kernels import fp8


@dataclass(frozen=True, kw_only=True)
class Fp8(Codec):
    """Per block: unit = max|x| / T, decode = unit * fp8(x / unit), T the format's largest number.

    Small values keep their relative precision, where those of a linear code vanish.

    Wire format: ceil(n / block) little-endian float32 units, then n bytes as in
    `torch.float8_e4m3fn` or `torch.float8_e5m2`. Bias: relative error at most 1 / 17 (e4m3) or
    1 / 9 (e5m2) in the normal range, which begins 2^-15 (e4m3) or 2^-30 (e5m2) below the block's
    maximum; a contraction. A block with a NaN or an infinity decodes to NaN.

    Args:
        format: e4m3: three bits of mantissa; e5m2: two, and more range.
        block: Elements that share a unit.

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
    def granularity(self) -> Granularity:
        """A block shares one unit."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """Elements that share a unit."""
        return self.block

    @property
    def takes_half(self) -> bool:
        """The kernel widens."""
        return True

    def wire_bytes(self, elems: int) -> int:
        """Four bytes per block, and a byte per element."""
        return sum(self.sections(elems))

    def sections(self, elems: int) -> tuple[int, int]:
        """Units, codes."""
        return 4 * self._blocks(elems), elems

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

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Cast."""
        return self._quantize(x, None, payload, 1.0)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Cast back, multiply and accumulate in one pass."""
        self._dequantize(payload, out, weight, add=True)

    @cached_property
    def fused(self) -> Fused:
        """What the kernels do in one pass."""
        return Fused(
            encode_feedback=self._encode_feedback,
            decode=self._decode,
            decode_sum=self._decode_sum,
        )

    def _encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float,
    ) -> int:
        """Add the residual, cast and keep the new residual in one pass."""
        return self._quantize(x, residual, payload, scale)

    def _decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Cast back and multiply by the units."""
        self._dequantize(payload, out, 1.0, add=False)

    def _decode_sum(
        self, payloads: Sequence[tuple[torch.Tensor, Draw]], out: torch.Tensor, weight: float
    ) -> None:
        """Cast back, multiply and add up all payloads in one pass."""
        parts = [self._checked_parts(payload, out.numel()) for payload, _ in payloads]
        fp8.sum_fp8(
            [codes for _, codes in parts],
            [scales for scales, _ in parts],
            as_array(out),
            form=fp8.FORMATS[self.format],
            block=self.block,
            weight=weight,
        )

    def _quantize(
        self, x: torch.Tensor, residual: torch.Tensor | None, payload: torch.Tensor, scale: float
    ) -> int:
        scales, codes = self._parts(payload, x.numel())
        fp8.quantize_fp8(
            as_array(x),
            codes,
            scales,
            form=fp8.FORMATS[self.format],
            block=self.block,
            residual=None if residual is None else as_array(residual),
            loss_scale=scale,
        )
        return payload.numel()

    def _dequantize(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, *, add: bool
    ) -> None:
        scales, codes = self._checked_parts(payload, out.numel())
        form = fp8.FORMATS[self.format]
        fp8.dequantize_fp8(
            codes, scales, as_array(out), form=form, block=self.block, weight=weight, add=add
        )

    def _blocks(self, elems: int) -> int:
        return math.ceil(elems / self.block)

    def _checked_parts(
        self, payload: torch.Tensor, elems: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        self.check(payload, elems)
        return self._parts(payload, elems)

    def _parts(
        self, payload: torch.Tensor, elems: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        raw: npt.NDArray[np.uint8] = as_array(payload)
        split = 4 * self._blocks(elems)
        return raw[:split].view(np.float32), raw[split:]
