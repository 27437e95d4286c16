"""MomentumCorrection: momentum before compression, so that what waits keeps its factor.

    u = m u + g;  v = v + u;  send c = C(v);  v = v - decode(c);  u = 0 where c is not zero

where v is the residual of error feedback (deep gradient compression, Lin et al., ICLR 2018). With
momentum in the optimizer instead, a value that waited for t steps would arrive without the m^t of
its steps. So the optimizer must have none: use SGD with momentum = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Gt, Lt

from compressa.aggregators.accelerated import Accelerated
from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.momentum import Momentum
from compressa.aggregators.single import build_aggregator, single
from compressa.compressor import Compressor, Granularity, Wrapper
from compressa.parameters import Layout
from compressa.wrappers.error_feedback import ErrorFeedback


@dataclass(frozen=True, kw_only=True)
class MomentumCorrection(Wrapper, AggregatingCompressor):
    """Error feedback that accumulates velocities instead of gradients.

    What is sent and what is kept add up to the sum of the velocities. A skipped step brings back
    what was sent, in the residual and in the velocity. Around anything but error feedback it is
    plain momentum without masking, so that parameters that travel in another way have it too.

    Args:
        compressor: Error feedback around a codec; or what shall have plain momentum. Error feedback
            in a scatter-reduce does not fit, since a rank's own shard is always sent whole.
        factor: m.
        masking: Whether the velocity starts anew where something was sent.
        clip_norm: The norm to which each rank cuts the gradient of each parameter before it adds
            it, times P^-1/2 for P ranks; None to cut nothing.

    Raises:
        ConfigError: A number is out of its range.
    """

    name: ClassVar[str] = "momentum_correction"

    compressor: Compressor
    factor: Annotated[float, Gt(0), Lt(1)] = 0.9
    masking: bool = True
    clip_norm: Annotated[float, Gt(0)] | None = None

    def __post_init__(self) -> None:
        self._momentum  # noqa: B018 - it checks itself

    @property
    def granularity(self) -> Granularity:
        """The compressor's, but a parameter's norm needs the whole of it."""
        own = self.compressor.granularity
        whole = self.clip_norm is not None and own is not Granularity.MATRIX
        return Granularity.PARAMETER if whole else own

    @property
    def block_elems(self) -> int:
        """The compressor's, where it can be cut."""
        whole = self.granularity is Granularity.PARAMETER
        return 1 if whole else self.compressor.block_elems

    @property
    def conserves_mass(self) -> bool:
        """It conserves the sum of velocities, not that of gradients."""
        return False

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """The compressor's, which accumulates velocities."""
        inner, momentum = self.compressor, self._momentum
        if isinstance(inner, ErrorFeedback):
            rule = replace(inner.rule, momentum=momentum)
            return single(inner.contraction, layout, world, feedback=rule)
        return Accelerated(build_aggregator(inner, layout, world), momentum, layout, world)

    @property
    def _momentum(self) -> Momentum:
        return Momentum(factor=self.factor, masking=self.masking, clip_norm=self.clip_norm)
