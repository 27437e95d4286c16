"""threshold: every element that is large enough (Strom, 2015; Dutta et al., 2020).

Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015,
sends what exceeds a fixed threshold, as the threshold with a sign. Dutta et al., "On the
Discrepancy between the Theoretical Analysis and Practical Implementations of Compressed
Communication for Distributed Deep Learning", AAAI 2020, send the value itself, as is done here: it
is never further from the truth, and the residual of what was sent is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from annotated_types import Ge, Gt, Le

from compressa.codecs._counted import BoundedSparse
from compressa.codecs._sparse import F32, U32, Gradient, share
from compressa.codecs.base import Contraction
from compressa.codecs.bounds import ROUNDING
from compressa.errors import ConfigError
from compressa.kernels import select

Unit = Literal["absolute", "rms", "max"]

_REFERENCES: dict[Unit, select.Reference] = {"absolute": "one", "rms": "rms", "max": "max"}


@dataclass(frozen=True, kw_only=True)
class Threshold(BoundedSparse):
    """Send the elements with |x| >= t; of more than max_density * n, the largest.

    t is `threshold`, or `threshold` times the root mean square or the largest magnitude of x, but
    then no more than the latter: something is always sent.
    An absolute threshold is compared with gradients and residuals as they are without a loss scale,
    if there are residuals.

    Wire format: u32 k; k little-endian values in `value_dtype`, in the order of their indices;
    then the indices as in `topk`. Bias: a contraction. An absolute threshold may send nothing at
    all, so that delta = 0. With "max", delta is the least of max_density and
    1 / (1 + (n - 1) threshold^2); with "rms", of max_density and 1 - threshold^2, and 1 / n if that
    is more. A scope with a NaN or an infinity sends one NaN.

    Args:
        value_dtype: Dtype of the values on the wire; what a cast loses stays in the residual.
        indices: Format of the indices.
        threshold: The smallest magnitude that is sent, in multiples of `unit`.
        unit: What the threshold is a multiple of: 1, or a statistic of the parameter's gradient.
        max_density: Largest share of the elements that is sent.

    Example:
        >>> Threshold(max_density=0.01).wire_bytes(1_000_000)
        50707
    """

    name: ClassVar[str] = "threshold"
    wire_id: ClassVar[int] = 13

    threshold: Annotated[float, Ge(1e-30), Le(1e30)] = 0.01
    unit: Unit = "absolute"
    max_density: Annotated[float, Gt(0), Le(1)] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in get_args(Unit):
            known = ", ".join(get_args(Unit))
            raise ConfigError(f"threshold: unit must be one of {known}, got {self.unit!r}")
        if not 0 < self.threshold < float("inf"):
            raise ConfigError(f"threshold: threshold must be positive, got {self.threshold}")
        if self.unit == "max" and self.threshold > 1:
            raise ConfigError(
                f"threshold: no element reaches {self.threshold} times the largest; with "
                'unit = "max", threshold must be at most 1'
            )
        if not 0 < self.max_density <= 1:
            raise ConfigError(f"threshold: max_density must be in (0, 1], got {self.max_density}")

    @property
    def splits_feedback(self) -> bool:
        """An absolute threshold is unscaled, as residuals are."""
        return self.unit == "absolute"

    def most(self, elems: int) -> int:
        """Return max_density * n, at least one."""
        return share(self.max_density, elems)

    def bias(self, elems: int) -> Contraction:
        """All are sent that reach t, or the k = `most` largest, where k may be all that there is.

        With "max", others just below t leave 1 / (1 + (n - 1) t^2). With "rms", others just below t
        leave 1 - t^2 (n - 1) / n; from t = 1 on, the largest may be all that is sent of nearly
        equal ones. An absolute threshold may be larger than all.
        """
        if self.unit == "absolute":
            return Contraction(0.0)
        n, square = max(elems, 1), (self.threshold * ROUNDING) ** 2
        kept = 1.0 / (1.0 + (n - 1) * square) if self.unit == "max" else 1.0 - square * (n - 1) / n
        kept = min(max(kept, 1.0 / n), self.most(n) / n)
        return Contraction(kept * (1.0 - self.form.rounding**2), self.form.range)

    def select(
        self, x: Gradient, indices: U32, values: F32, residual: F32 | None, loss_scale: float
    ) -> int:
        """Compare with the threshold."""
        return select.select_above(
            x,
            self.threshold,
            indices,
            values,
            relative_to=_REFERENCES[self.unit],
            residual=residual,
            loss_scale=loss_scale,
        )
