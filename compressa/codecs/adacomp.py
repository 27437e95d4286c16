"""adacomp: what matters in each bin of elements (Chen et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from compressa.codecs._counted import BoundedSparse
from compressa.codecs._sparse import F32, U32, Gradient, share
from compressa.codecs.base import Contraction
from compressa.errors import ConfigError
from compressa.kernels import adacomp


@dataclass(frozen=True, kw_only=True)
class AdaComp(BoundedSparse):
    """Send where |e + 2 g| >= largest |e + g| of the bin, for gradient g and residual e.

    So an element is sent if it would be as large as the largest one, should its gradient repeat.
    Of more than max_density * n such elements, the largest are sent. What is sent is e + g itself,
    where the paper sends its sign times the mean of the bins' largest magnitudes: an element that
    was sent leaves nothing behind, and without a residual the result is a contraction.

    Wire format: u32 k; k little-endian values in `value_dtype`, in the order of their indices;
    then the indices as in `topk`. Bias: a contraction with delta = 4 / (bin_elems + 3), or
    max_density if that is less. A scope with a NaN or an infinity sends one NaN.

    Args:
        value_dtype: Dtype of the values on the wire; what a cast loses stays in the residual.
        indices: Format of the indices.
        bin_elems: Elements of a bin. The paper has 500 for matrices, and 50 for convolutions.
        max_density: Largest share of the elements that is sent.

    Example:
        >>> AdaComp(max_density=0.01).wire_bytes(1_000_000)
        50707
    """

    name: ClassVar[str] = "adacomp"
    wire_id: ClassVar[int] = 15

    bin_elems: Annotated[int, Ge(1), Le(1 << 20)] = 500
    max_density: Annotated[float, Gt(0), Le(1)] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bin_elems < 1:
            raise ConfigError(f"adacomp: bin_elems must be at least 1, got {self.bin_elems}")
        if not 0 < self.max_density <= 1:
            raise ConfigError(f"adacomp: max_density must be in (0, 1], got {self.max_density}")

    @property
    def splits_feedback(self) -> bool:
        """The gradient counts twice, the residual once."""
        return True

    def most(self, elems: int) -> int:
        """Return max_density * n, at least one."""
        return share(self.max_density, elems)

    def bias(self, elems: int) -> Contraction:
        """Of each bin, all are sent that reach half the largest, or the k = `most` largest of all.

        A bin of b keeps least where the others are just below half: 1 / (1 + (b - 1) / 4); all bins
        together where all elements are alike: k / n.
        """
        n = max(elems, 1)
        in_bin = 4.0 / (min(self.bin_elems, n) + 3)
        return Contraction(
            min(in_bin, self.most(n) / n) * (1.0 - self.form.rounding**2), self.form.range
        )

    def select(
        self, x: Gradient, indices: U32, values: F32, residual: F32 | None, loss_scale: float
    ) -> int:
        """Compare with the largest of each bin."""
        return adacomp.select_adacomp(
            x, self.bin_elems, indices, values, residual=residual, loss_scale=loss_scale
        )
