"""demo: the largest cosine coefficients of each tile, from DeMo (Peng et al., 2024).

Where neighbouring elements vary together, the transform gathers most of their length in few
coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy.typing as npt
import torch
from annotated_types import Ge, Le

from compressa.bias import LARGEST, Range
from compressa.codecs._kernel import Array, KernelCodec, Parts
from compressa.codecs._sparse import SparseForm, ValueDtype
from compressa.codecs.base import Contraction, Draw
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import cuda, dct, device_of
from compressa.parameters import ParameterInfo

_ROUNDING = 2.0**-21  # of coefficients, and of what they decode to, relative to their lengths


@dataclass(frozen=True, kw_only=True)
class DeMo(KernelCodec):
    """Keep the k largest coefficients of an orthonormal DCT-II of each tile.

    A matrix is cut into tiles of N x N elements, which are transformed along both dimensions, and a
    vector into chunks of N: c_j = sum_i x_i T_ji, C(x)_i = sum over the kept j of c_j T_ji, T_ji =
    s_j cos(pi (2i + 1) j / (2N)) with s_0 = sqrt(1 / N) and s_j = sqrt(2 / N) else; in tiles, T
    (x) T. Of equal |c| the earlier j is kept. What has more than two dimensions is a matrix of
    shape[0] rows.

    This is what the paper does to a gradient, not its optimizer: there the residual decays by .999
    a step before the gradient, times the learning rate, is added, and the mean's sign is the
    update. The decay is a setting of error feedback; the sign is for the optimizer to take. Tiles
    and numbers are those of the paper's program, which takes smaller ones where 64 does not divide
    a dimension: here the last ones are padded with zeros. It averages a coefficient over the ranks
    that sent it, here over all.

    Wire format: per tile k little-endian coefficients in `value_dtype`, in the order of their j;
    after all of them, per tile their indices, in whichever takes fewer bytes: k numbers of log2 n
    bits each, one little-endian bit stream filled up to a byte, or a bitmap of n bits (bit j % 8 of
    byte j // 8), where n is N^2 for tiles and N for chunks. Tiles follow each other from left to
    right, then downwards. Bias: a contraction with delta = k / n but for rounding, reached by a
    tile whose coefficients are all alike. A tile with a NaN or an infinity decodes to NaN. Every
    rank decodes the same bits: see `compressa.kernels.dct`.

    Args:
        chunk: N, a power of two.
        kept: k, at most n; all of a vector's chunk, if that is less.
        columns: Elements of a row of the matrix; 0 for those of each parameter.
        value_dtype: Dtype of the coefficients on the wire; what a cast loses stays in the residual.

    Example:
        >>> DeMo(columns=1024).wire_bytes(1 << 20)
        45056
    """

    name: ClassVar[str] = "demo"
    wire_id: ClassVar[int] = 18

    chunk: Annotated[int, Ge(dct.LEAST), Le(dct.MOST)] = 64
    kept: Annotated[int, Ge(1), Le(dct.MOST**2)] = 32
    columns: Annotated[int, Ge(0), Le(1 << 20)] = 0
    value_dtype: ValueDtype = "float32"

    def __post_init__(self) -> None:
        self._form(self.kept, self.columns or self.chunk)
        _ = self._values  # it checks itself

    @cached_property
    def _values(self) -> SparseForm:
        return SparseForm(self.name, self.value_dtype)

    @cached_property
    def form(self) -> dct.ChunkForm:
        """Tiles, and how many coefficients of each."""
        kept = self.kept if self.columns else min(self.kept, self.chunk)
        return self._form(kept, self.columns)

    def _form(self, kept: int, columns: int) -> dct.ChunkForm:
        try:
            return dct.ChunkForm(chunk=self.chunk, kept=kept, columns=columns)
        except ValueError as error:
            raise ConfigError(f"demo: {error}") from error

    @property
    def block_elems(self) -> int:
        """Elements of the tiles that lie side by side, or of a chunk."""
        return self.form.band_elems

    def for_parameter(self, parameter: ParameterInfo) -> DeMo:
        """Cut a matrix into tiles; a row has no more elements than there are."""
        if not parameter.elems or not (self.columns or len(parameter.shape) > 1):
            return self
        columns = self.columns or parameter.elems // parameter.shape[0]
        return replace(self, columns=min(columns, parameter.elems))

    @property
    def recorded(self) -> bool:
        """All kernels."""
        return True

    @property
    def head_dtype(self) -> npt.DTypeLike:
        """As the kernels take it."""
        return self._values.dtype

    def arrays(self, elems: int) -> tuple[int, int]:
        """Bytes of coefficients, in the dtype of values, and of their indices."""
        values, position_bytes = self.form.sizes(elems)
        return self._values.dtype.itemsize * values, position_bytes

    def bias(self, elems: int) -> Contraction:
        """Delta = k / n; rounding is a part of the error."""
        kept, tile_elems, values = self.form.kept, self.form.tile_elems, self._values
        left = math.sqrt(1.0 - kept / tile_elems * (1.0 - values.rounding**2)) + _ROUNDING
        # A tile of one such element has small coefficients, whose casts lose half of the smallest
        # number of the dtype each; and no coefficient is larger than all elements together.
        smallest = max(2.0**-100, math.sqrt(kept) * values.range.smallest)
        largest = min(LARGEST, values.range.largest) / tile_elems
        return Contraction(max(0.0, 1.0 - left**2), Range(smallest, largest))

    def quantize(
        self, x: Array, parts: Parts, draw: Draw, residual: Array | None, loss_scale: float
    ) -> None:
        """Transform, and keep the largest; the residual loses what is sent, tile by tile."""
        values, indices = parts
        dct.keep_coefficients(
            x, values, indices, form=self.form, residual=residual, loss_scale=loss_scale
        )

    def dequantize(self, parts: Parts, out: Array, weight: float, *, add: bool) -> None:
        """Check all indices and transform back."""
        values, indices = parts
        try:  # the kernel checks all indices first
            dct.add_coefficients(values, indices, out, form=self.form, weight=weight, add=add)
        except ValueError as error:
            raise self._refusal(out.size) from error

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        """See `Codec.check_content`: every index.

        Where a GPU's answers come later anyway, decoding does that.
        """
        _, indices = self.split(payload, elems)
        if device_of(indices) != "cpu" and cuda.answers_come_later():
            return
        if not dct.are_positions(indices, form=self.form):
            raise self._refusal(elems)

    def _refusal(self, elems: int) -> PayloadError:
        return PayloadError(
            f"demo: a payload of {elems} elements has a tile without {self.form.kept} different "
            "indices in order"
        )
