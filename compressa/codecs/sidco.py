"""sidco: about k large elements, by a threshold from a fitted tail (Abdelmoniem et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from compressa.codecs._counted import BoundedSparse
from compressa.codecs._sparse import F32, U32, Gradient, share
from compressa.codecs.base import Contraction
from compressa.errors import ConfigError
from compressa.kernels import sidco


@dataclass(frozen=True, kw_only=True)
class SIDCo(BoundedSparse):
    """Send what reaches a threshold that leaves nearly k = max(1, round(density * n)) elements.

    The threshold is that of an exponential distribution with the mean excess m of c magnitudes
    over t: t + m ln(c / k). The first stage takes all magnitudes, t = 0; each further one those
    above a larger t. A sample says where the stages begin, and each fits all elements from there
    on, so that the gradient is read once for all. The paper changes the number of stages from
    step to step, by the numbers that were sent. Here it is chosen in each step, since codecs have
    no memory: the first stage whose threshold leaves 0.8 k to 1.2 k elements counts, or the last.
    Of more than 1.2 k elements, the largest are sent. Of fewer than 0.8 k, which a single element
    far out brings about, the k largest are sent in their place, and so is all that is not 0 where
    that is no more than k.

    Wire format: u32 count; that many little-endian values in `value_dtype`, in the order of their
    indices; then the indices as in `topk`. Bias: a contraction with delta >= 0.8 k / n. A scope
    with a NaN or an infinity sends one NaN.

    Args:
        value_dtype: Dtype of the values on the wire; what a cast loses stays in the residual.
        indices: Format of the indices.
        density: k / n.
        stages: Most stages.

    Example:
        >>> SIDCo(density=0.01).wire_bytes(1_000_000)
        60457
    """

    name: ClassVar[str] = "sidco"
    wire_id: ClassVar[int] = 14

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    stages: Annotated[int, Ge(1), Le(16)] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.density <= 1:
            raise ConfigError(f"sidco: density must be in (0, 1], got {self.density}")
        if self.stages < 1:
            raise ConfigError(f"sidco: stages must be at least 1, got {self.stages}")

    def kept(self, elems: int) -> int:
        """Return k for a scope of `elems` elements."""
        return share(self.density, elems)

    def most(self, elems: int) -> int:
        """Return 1.2 k."""
        return min(elems, math.ceil((1 + sidco.TOLERANCE) * self.kept(elems)))

    def bias(self, elems: int) -> Contraction:
        """The largest 0.8 k elements are always sent."""
        sent = math.ceil((1 - sidco.TOLERANCE) * self.kept(elems))
        kept = sent / max(elems, 1)
        return Contraction((1.0 - self.form.rounding**2) * kept, self.form.range)

    def select(
        self, x: Gradient, indices: U32, values: F32, residual: F32 | None, loss_scale: float
    ) -> int:
        """Fit, and compare with the threshold."""
        k = self.kept(x.size)
        return sidco.select_sidco(
            x, k, self.stages, indices, values, residual=residual, loss_scale=loss_scale
        )
