"""demo: the largest cosine coefficients of each chunk, from DeMo (Peng et al., 2024).

Where neighbouring elements vary together, the transform gathers most of their length in few
coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Le

from compressa.arrays import as_array
from compressa.codecs.base import Codec, Contraction, Draw, Granularity
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import dct

_ROUNDING = 2.0**-22  # of coefficients, and of what they decode to, relative to their lengths


@dataclass(frozen=True, kw_only=True)
class DeMo(Codec):
    """Keep the k largest coefficients of an orthonormal DCT-II of each chunk of N elements.

    c_j = sum_i x_i T_ji, C(x)_i = sum over the kept j of c_j T_ji, T_ji = s_j cos(pi (2i + 1) j /
    (2N)) with s_0 = sqrt(1 / N) and s_j = sqrt(2 / N) else; of equal |c| the lower j is kept.

    This is what the paper does to a gradient, not its optimizer: there the residual decays by .999
    a step before the gradient, times the learning rate, is added, and the mean's sign is the
    update. The decay is a setting of error feedback; the sign is for the optimizer to take. The
    paper's program cuts matrices into tiles of 64 x 64 of which 32 coefficients are kept, and
    vectors into chunks of 64, of which 32 are kept too; here all are vectors, in torch's order. It
    averages a coefficient over the ranks that sent it, here over all.

    Wire format: ceil(n / N) times k little-endian float32 coefficients, in the order of their j;
    then per chunk their places, in whichever takes fewer bytes: k numbers of log2 N bits each, one
    little-endian bit stream filled up to a byte, or a bitmap of N bits (bit j % 8 of byte j // 8).
    A shorter last chunk is padded with zeros, and has all of this too. Bias: a contraction with
    delta = k / N but for rounding, reached by a vector whose coefficients are all alike. A chunk
    with a NaN or an infinity decodes to NaN. Every rank decodes the same bits: see
    `compressa.kernels.dct`.

    Args:
        chunk: N, a power of two.
        kept: k, at most N; density = k / N.

    Example:
        >>> DeMo(chunk=64, kept=8).wire_bytes(64)
        38
    """

    name: ClassVar[str] = "demo"
    wire_id: ClassVar[int] = 18

    chunk: Annotated[int, Ge(dct.LEAST), Le(dct.MOST)] = 64
    kept: Annotated[int, Ge(1), Le(dct.MOST)] = 32

    def __post_init__(self) -> None:
        self.form  # noqa: B018 - it checks itself

    @cached_property
    def form(self) -> dct.ChunkForm:
        """Chunks, and how many coefficients of each."""
        try:
            return dct.ChunkForm(chunk=self.chunk, kept=self.kept)
        except ValueError as error:
            raise ConfigError(f"demo: {error}") from error

    @property
    def granularity(self) -> Granularity:
        """A chunk is transformed as a whole."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """Elements of a chunk."""
        return self.chunk

    @property
    def takes_half(self) -> bool:
        """The kernel widens."""
        return True

    def wire_bytes(self, elems: int) -> int:
        """Four bytes per coefficient, and its place."""
        values, place_bytes = self.form.sizes(elems)
        return 4 * values + place_bytes

    def bias(self, elems: int) -> Contraction:
        """Delta = k / N; rounding is a part of the error."""
        left = math.sqrt(1.0 - self.kept / self.chunk) + _ROUNDING
        return Contraction(max(0.0, 1.0 - left**2))

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Transform, and keep the largest."""
        values, places = self._parts(payload, x.numel())
        dct.keep_coefficients(as_array(x), values, places, form=self.form)
        return payload.numel()

    def encode_feedback(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        payload: torch.Tensor,
        draw: Draw,
        scale: float = 1.0,
    ) -> int:
        """Add the residual, transform, and subtract what is sent, chunk by chunk."""
        values, places = self._parts(payload, x.numel())
        dct.keep_coefficients(
            as_array(x), values, places, form=self.form, residual=as_array(residual), scale=scale
        )
        return payload.numel()

    def decode(self, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
        """Check all places and transform back."""
        self._transform_back(payload, out, 1.0, add=False)

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Check all places, transform back and accumulate."""
        self._transform_back(payload, out, weight, add=True)

    def check(self, payload: torch.Tensor, elems: int) -> None:
        """Check the length and every place; those that a GPU has are waited for."""
        super().check(payload, elems)
        _, places = self._parts(payload, elems)
        if not dct.are_places(places, form=self.form):
            raise self._refusal(elems)

    def _transform_back(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, *, add: bool
    ) -> None:
        super().check(payload, out.numel())
        values, places = self._parts(payload, out.numel())
        to = as_array(out)
        try:  # the kernel checks all places first
            dct.add_coefficients(values, places, to, form=self.form, weight=weight, add=add)
        except ValueError as error:
            raise self._refusal(out.numel()) from error

    def _refusal(self, elems: int) -> PayloadError:
        return PayloadError(
            f"demo: a payload of {elems} elements has a chunk without {self.kept} different "
            "places in order"
        )

    def _parts(
        self, payload: torch.Tensor, elems: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        raw: npt.NDArray[np.uint8] = as_array(payload)
        split = 4 * self.form.sizes(elems)[0]
        return raw[:split].view(np.float32), raw[split:]
