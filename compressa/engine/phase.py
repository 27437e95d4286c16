"""Phase: the steps during which the compressors, and so the units, stay the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from compressa.aggregators.base import World
from compressa.compressor import Compressor
from compressa.config import Exchange
from compressa.engine.sums import Sums
from compressa.engine.unit_runtime import UnitRuntime
from compressa.engine.units import build_units
from compressa.parameters import ParameterInfo
from compressa.schedulers import POLICIES, Plan


class Phase:
    """Units, their aggregators, and the plan of a stretch of steps.

    Args:
        parameters: In the model's order.
        compressors: By parameter name; `at` and `for_parameter` are resolved here.
        step: First step of the phase.
        exchange: Says how large units are.
        world: What aggregators need.
        sums: What will carry the exchanges.
    """

    def __init__(
        self,
        parameters: Sequence[ParameterInfo],
        compressors: Mapping[str, Compressor],
        step: int,
        exchange: Exchange,
        world: World,
        sums: Sums,
    ) -> None:
        now = {p.name: compressors[p.name].at(step).for_parameter(p) for p in parameters}
        self._first_step = step
        self._end_step = min((b for b in breakpoints(compressors) if b > step), default=None)
        self.sums = sums
        self.units = [
            UnitRuntime(unit, world)
            for unit in build_units(
                parameters,
                now,
                exchange.unit_bytes,
                exchange.unit_payload_bytes,
                exchange.unit_dense_bytes,
            )
        ]
        self.units_of: defaultdict[str, list[int]] = defaultdict(list)
        for index, unit in enumerate(self.units):
            for name in unit.names:
                self.units_of[name].append(index)

    def covers(self, step: int) -> bool:
        """Whether a step belongs to this phase."""
        before_end = self._end_step is None or step < self._end_step
        return self._first_step <= step and before_end

    def end(self, step: int) -> None:
        """End before a step, which something else is in force from."""
        self._end_step = step if self._end_step is None else min(step, self._end_step)

    def plan(self, policy: str) -> Plan:
        """Plan a step with one of the schedulers' policies."""
        steps = [
            transfer
            for index, unit in enumerate(self.units)
            for transfer in self.sums.transfers(index, unit.aggregator.rounds)
        ]
        return POLICIES[policy](steps, first_step=self._first_step)

    def ordered(self, plan: Plan) -> list[tuple[int, int]]:
        """Return the part of a plan that must be launched in order."""
        chosen = {
            (index, stage)
            for index, unit in enumerate(self.units)
            for stage in self.sums.ordered(unit.aggregator.rounds)
        }
        return [key for key in plan.order if key in chosen]


def breakpoints(compressors: Mapping[str, Compressor]) -> set[int]:
    """Return the steps at which one of several compressors changes."""
    return {step for compressor in compressors.values() for step in compressor.breakpoints}
