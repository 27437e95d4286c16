"""onebit_sgd: one bit per element and two means per column (Seide et al., 2014).

The quantiser with which error feedback began: whatever a bit cannot say, the next step does.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from compressa.bias import LARGEST, SMALLEST_NORMAL, Range
from compressa.codecs._kernel import Array, KernelCodec, Parts
from compressa.codecs.base import Contraction, Draw, Granularity
from compressa.errors import ConfigError
from compressa.kernels import onebit_sgd
from compressa.parameters import ParameterInfo

_LEAST = 32  # elements: two means for fewer would outweigh their signs


@dataclass(frozen=True, kw_only=True)
class OneBitSGD(KernelCodec):
    """Per group: negative elements become their mean, all others theirs; a sign bit each.

    C(x)_i = mean of {x_j : x_j < 0} where x_i < 0, else mean of {x_j : x_j >= 0}.

    A group is a column of the paper's weight matrix: the weights into one neuron, which torch
    stores as a row, elements / shape[0] in sequence. Rows of fewer than 32 elements join, whole, to
    groups of at least 32; a vector is one group.

    Wire format: per group two little-endian float32, the mean of its negative elements and that of
    the others (0 where there are none); then per group of length L m = ceil(L / 8) bytes; bit j of
    byte i is the sign of element j * m + i, 1 for negative. Bias: a contraction with
    delta = ||C(x)||^2 / ||x||^2. It is never below that of onebit with the same groups, 2 / pi on
    Gaussian data, and at least 1 / L, reached by a single positive element among zeros. The
    residual of either sign sums to 0 in every group. A group with a NaN or an infinity decodes to
    NaN.

    Args:
        group: Elements of a group; 0 for the rows of each parameter.

    Example:
        >>> OneBitSGD(group=1000).wire_bytes(1_000_000)
        133000
    """

    name: ClassVar[str] = "onebit_sgd"
    wire_id: ClassVar[int] = 17

    group: Annotated[int, Ge(0), Le(1 << 30)] = 0

    def __post_init__(self) -> None:
        if self.group < 0 or 0 < self.group < 8:
            raise ConfigError(f"onebit_sgd: group must be 0 or at least 8, got {self.group}")

    @property
    def granularity(self) -> Granularity:
        """A group shares two means; without a length, all that comes together is one group."""
        return Granularity.BLOCK if self.group else Granularity.PARAMETER

    @property
    def block_elems(self) -> int:
        """Elements of a group."""
        return self.group or 1

    def for_parameter(self, parameter: ParameterInfo) -> OneBitSGD:
        """Set the length of a group where it is the rows'."""
        if self.group or len(parameter.shape) < 2 or not parameter.elems:
            return self
        row = parameter.elems // parameter.shape[0]
        return dataclasses.replace(self, group=row * math.ceil(_LEAST / row))

    @property
    def recorded(self) -> bool:
        """All kernels."""
        return True

    def arrays(self, elems: int) -> tuple[int, int]:
        """Bytes of two float32 means of each group, and of signs, a bit per element."""
        group = self._length(elems)
        signs = onebit_sgd.group_sign_bytes(elems, group)
        return 8 * math.ceil(elems / group), signs

    def bias(self, elems: int) -> Contraction:
        """Delta >= 1 / L, reached by a vector with a single non-zero element."""
        group = max(1, min(self._length(elems), elems))
        return Contraction((1 - 1e-5) / group, Range(group * SMALLEST_NORMAL, LARGEST))

    def quantize(
        self, x: Array, parts: Parts, draw: Draw, residual: Array | None, loss_scale: float
    ) -> None:
        """Signs and means."""
        (means, bits), group = parts, self._length(x.size)
        onebit_sgd.two_means_quantize(
            x, bits, means, group=group, residual=residual, loss_scale=loss_scale
        )

    def dequantize(self, parts: Parts, out: Array, weight: float, *, add: bool) -> None:
        """Choose between the means by the signs."""
        (means, bits), group = parts, self._length(out.size)
        onebit_sgd.two_means_dequantize(bits, means, out, group=group, weight=weight, add=add)

    def _length(self, elems: int) -> int:
        return self.group or max(elems, 1)
