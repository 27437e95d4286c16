"""dgc: about k large elements, by a threshold from a sample (Lin et al., 2018).

The selection of Deep Gradient Compression. Its momentum correction, the masking of momenta, the
clipping and the warm-up of the density are done around a codec, not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt, Le

from compressa.codecs._counted import BoundedSparse
from compressa.codecs._sparse import F32, U32, Gradient, share
from compressa.codecs.base import Contraction
from compressa.codecs.bounds import ROUNDING
from compressa.errors import ConfigError
from compressa.kernels import dgc

_FEWEST, _ENOUGH = 2, 256  # expected elements of the sample above the threshold


@dataclass(frozen=True, kw_only=True)
class DGC(BoundedSparse):
    """Send what reaches a threshold that leaves nearly k = max(1, round(density * n)) elements.

    The threshold leaves the share density of a sample, one element of each of m equal stretches:
    m = sample * n, but at least 2 / density and at most 256 / density, beyond which it says nothing
    more. Up to ten times, while fewer than 0.8 k elements reach the threshold, it is lowered by a
    fifth; if more than 1.3 k do, the k largest are sent, exactly.

    Wire format: u32 count; that many little-endian values in `value_dtype`, in the order of their
    indices; then the indices as in `topk`. Bias: a contraction with delta = 0.8 k / n, or
    less where the sample is short. A scope with a NaN or an infinity sends one NaN.

    Args:
        value_dtype: Dtype of the values on the wire; what a cast loses stays in the residual.
        indices: Format of the indices.
        density: k / n.
        sample: m / n.

    Example:
        >>> DGC(density=0.01).wire_bytes(1_000_000)
        65332
    """

    name: ClassVar[str] = "dgc"
    wire_id: ClassVar[int] = 16

    density: Annotated[float, Gt(0), Le(1)] = 0.001
    sample: Annotated[float, Gt(0), Le(1)] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("density", "sample"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"dgc: {name} must be in (0, 1], got {getattr(self, name)}")

    def kept(self, elems: int) -> int:
        """Return k for a scope of `elems` elements."""
        return share(self.density, elems)

    def most(self, elems: int) -> int:
        """Return 1.3 k."""
        return min(elems, dgc.most_selected(self.kept(elems)))

    def bias(self, elems: int) -> Contraction:
        """Sent are at least 0.8 k, none smaller than what is not; or what the sample's share says.

        That is q elements of the sample, and after ten steps down others may be as large as 0.8^10
        times the least of them.
        """
        n = max(elems, 1)
        k, sample = self.kept(n), self._sample(n)
        found, fewest = -(-k * sample // n), math.ceil(dgc.FEWEST * k)
        step = (dgc.FEWEST * ROUNDING) ** (2 * dgc.ADJUSTMENTS)
        kept = min(1.0, max(fewest, found) / n)
        if found < fewest:
            kept = min(kept, found / (found + (n - found) * step))
        return Contraction(kept * (1.0 - self.form.rounding**2), self.form.range)

    def select(
        self, x: Gradient, indices: U32, values: F32, residual: F32 | None, loss_scale: float
    ) -> int:
        """Look at a sample, and compare with the threshold."""
        k, sample = self.kept(x.size), self._sample(x.size)
        return dgc.select_dgc(
            x, k, sample, indices, values, residual=residual, loss_scale=loss_scale
        )

    def _sample(self, elems: int) -> int:
        wanted = max(self.sample * elems, _FEWEST / self.density)
        return math.ceil(min(wanted, _ENOUGH / self.density, elems))
