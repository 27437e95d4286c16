"""Warmup: dense for the first steps, compressed from then on.

Early gradients are large and change fast; a compressor with memory does better once they
have settled. The other way round works too: what the first one kept and the second one does not is
added to the first gradient that the second one takes (`Flushed`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from compressa.codecs.base import Codec
from compressa.codecs.none import NoCompression
from compressa.compressor import Compressor, Wrapper
from compressa.errors import ConfigError
from compressa.parameters import ParameterInfo
from compressa.wrappers.flushed import Flushed


@dataclass(frozen=True, kw_only=True)
class Warmup(Wrapper):
    """`dense` for steps 0 to `steps` - 1, then `compressor`.

    Args:
        compressor: In force from step `steps` on.
        steps: Length of the warm-up.
        dense: In force before.
    """

    name: ClassVar[str] = "warmup"

    compressor: Compressor
    steps: int
    dense: Compressor = field(default_factory=NoCompression)

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"warmup: steps must not be negative, got {self.steps}")

    @property
    def breakpoints(self) -> tuple[int, ...]:
        """The end of the warm-up, and what the wrapped compressors have."""
        inner = {*self.compressor.breakpoints, *self.dense.breakpoints}
        return tuple(sorted(inner | {self.steps} if self.steps else inner))

    def at(self, step: int) -> Compressor:
        """Return the one in force; the second one goes on with what the first one left."""
        if step < self.steps:
            return self.dense.at(step)
        now = self.compressor.at(step)
        keeps_nothing = not self.steps or isinstance(self.dense, Codec)
        return now if keeps_nothing or isinstance(now, Flushed) else Flushed(compressor=now)

    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        """Resolve both."""
        return replace(
            self,
            compressor=self.compressor.for_parameter(parameter),
            dense=self.dense.for_parameter(parameter),
        )
