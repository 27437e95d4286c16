"""DensitySchedule: a sparse compressor that begins dense and gets sparser in stages.

The first gradients differ much from step to step, and a residual of them is soon stale. Deep
gradient compression therefore sends 25 %, 6.3 %, 1.5 % and 0.4 % of the elements in turn before
it sends 0.1 % (Lin et al., ICLR 2018).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from compressa.compressor import Compressor, Wrapper
from compressa.errors import ConfigError
from compressa.parameters import ParameterInfo


@dataclass(frozen=True, kw_only=True)
class DensitySchedule(Wrapper):
    """`compressor` with each of `densities` in turn for the first `steps` steps, then as it is.

    The steps are shared out equally; residuals are handed on.

    Args:
        compressor: A sparse compressor, or a wrapper around one.
        steps: Length of all stages together.
        densities: Share of elements that is sent, by stage.

    Raises:
        ConfigError: The compressor has no density, or a stage would have no step.
    """

    name: ClassVar[str] = "density_schedule"

    compressor: Compressor
    steps: Annotated[int, Ge(1)]
    densities: tuple[float, ...] = (0.25, 0.063, 0.015, 0.004)

    def __post_init__(self) -> None:
        if not has_density(self.compressor):
            raise ConfigError(
                f"{self.compressor.name} has no density; a schedule needs a sparse compressor"
            )
        if not 0 < len(self.densities) <= self.steps:
            raise ConfigError(
                f"a schedule of {len(self.densities)} densities needs at least as many steps, and "
                f"one density; steps is {self.steps}"
            )
        for density in self.densities:
            with_density(self.compressor, density)  # it checks its own range

    @property
    def breakpoints(self) -> tuple[int, ...]:
        """The end of each stage, and what the compressor has."""
        return tuple(sorted({*self._edges, *self.compressor.breakpoints}))

    def at(self, step: int) -> Compressor:
        """Return the compressor with the density of a step."""
        now = self.compressor.at(step)
        for edge, density in zip(self._edges, self.densities, strict=True):
            if step < edge:
                return with_density(now, density) if has_density(now) else now
        return now

    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        """Resolve the compressor; what has no density has no schedule."""
        inner = self.compressor.for_parameter(parameter)
        return replace(self, compressor=inner) if has_density(inner) else inner

    @property
    def _edges(self) -> tuple[int, ...]:
        stages = len(self.densities)
        return tuple(self.steps * (i + 1) // stages for i in range(stages))


def has_density(compressor: Compressor) -> bool:
    """Whether a compressor, or what it wraps, has a density."""
    if isinstance(compressor, Wrapper):
        return has_density(compressor.inner)
    return "density" in {field.name for field in dataclasses.fields(compressor)}


def with_density(compressor: Compressor, density: float) -> Compressor:
    """Return the same compressor with another density, within its wrappers.

    Args:
        compressor: One of which `has_density` holds.
        density: Share of elements that is sent.

    Raises:
        ConfigError: The compressor takes no such density.
    """
    if isinstance(compressor, Wrapper):
        return compressor.around(with_density(compressor.inner, density))
    changes: dict[str, Any] = {"density": density}
    return replace(compressor, **changes)
