"""Phase: the steps during which the compressors, and so the units, stay the same."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from compressa.aggregators.base import World
from compressa.compressor import Compressor
from compressa.engine.units.round_plans import Carrier
from compressa.engine.units.sums import Sums
from compressa.engine.units.unit_runtime import UnitRuntime
from compressa.engine.units.units import Unit, UnitSizes, build_units
from compressa.parameters import Layout, ParameterInfo
from compressa.schedulers import (
    POLICIES,
    Conditions,
    Name,
    Plan,
    Profile,
    Transfer,
    UnitTimes,
    launches,
)


class StepPlan(NamedTuple):
    """What all ranks do alike.

    Attributes:
        plan: Which of the ready exchanges goes first.
        launches: The order of those that all ranks must launch in one.
    """

    plan: Plan
    launches: Sequence[Name]


class Member(NamedTuple):
    """One of those that are run in a step: a unit, or what stands for several.

    Attributes:
        numbers: Of the units.
        unit: What is run.
        carriers: Of each of its rounds; see `Sums.carrier`.
    """

    numbers: tuple[int, ...]
    unit: UnitRuntime
    carriers: Sequence[Carrier]


class Phase:
    """Units, their aggregators, and the plan of a stretch of steps.

    Args:
        parameters: In the model's order.
        compressors: By parameter name; `at` and `for_parameter` are resolved here.
        step: First step of the phase.
        sizes: How large units are.
        world: What aggregators need.
        sums: What will carry the exchanges.

    Attributes:
        first_step: Its first step.
        end_step: The first step after it; infinite where none is known.
        sums: As given.
        units: In the order in which backward readies them, by number.
        members: Each unit with what carries its rounds, by number.
        units_of: By parameter name, the numbers of the units that it has a part in.
    """

    def __init__(
        self,
        parameters: Sequence[ParameterInfo],
        compressors: Mapping[str, Compressor],
        step: int,
        sizes: UnitSizes,
        world: World,
        sums: Sums,
    ) -> None:
        now = {p.name: compressors[p.name].at(step).for_parameter(p) for p in parameters}
        self.first_step = step
        later = (b for b in breakpoints(compressors) if b > step)
        self.end_step: float = min(later, default=math.inf)
        self.sums = sums
        self._world = world
        units = enumerate(build_units(parameters, now, sizes))
        self.members = [self._member((i,), UnitRuntime(unit, world)) for i, unit in units]
        self.units = [member.unit for member in self.members]
        self.units_of: defaultdict[str, list[int]] = defaultdict(list)
        for index, unit in enumerate(self.units):
            for name in unit.names:
                self.units_of[name].append(index)

    def joined(self, numbers: Sequence[int]) -> list[Member]:
        """Return what stands for units of one compressor: themselves, if it could change a bit."""
        alone, units = [self.members[i] for i in numbers], [self.units[i] for i in numbers]
        if len(units) == 1 or not all(unit.aggregator.joinable for unit in units):
            return alone
        layout = Layout.join([unit.layout for unit in units])
        joined = UnitRuntime(Unit(layout, units[0].compressor), self._world)
        rounds = (round_ for unit in [joined, *units] for round_ in unit.rounds)
        by_rank = all(self.sums.plan(round_).by_rank for round_ in rounds)
        return [self._member(tuple(numbers), joined)] if by_rank else alone

    def _member(self, numbers: tuple[int, ...], unit: UnitRuntime) -> Member:
        return Member(numbers, unit, list(map(self.sums.carrier, unit.rounds)))

    def end(self, step: int) -> None:
        """End before a step, from which on something else is in force; or earlier, if it does."""
        self.end_step = min(step, self.end_step)

    def transfers(self, profile: Profile | None = None) -> list[Transfer]:
        """List the exchanges of a step, with their times as far as they are known.

        Args:
            profile: What steps were measured to be like; without it, times are 0.

        Raises:
            ConfigError: No message can be as long.
        """
        result: list[Transfer] = []
        for index, unit in enumerate(self.units):
            stages = self.sums.transfers(index, unit.rounds)
            if profile is not None and stages:
                stages = _timed(stages, profile, profile.units[index])
            result += stages
        return result

    def plan(self, policy: str, first_step: int, profile: Profile | None = None) -> StepPlan:
        """Plan a step with one of the schedulers' policies; a pure function of the arguments.

        Args:
            policy: A name of `POLICIES`.
            first_step: First step that follows the plan.
            profile: What steps were measured to be like; None if nothing was.

        Raises:
            ConfigError: No message can be as long as an exchange of it.
        """
        compute_s = profile.step_s if profile else 0.0
        conditions, transfers = Conditions(self.sums.wire, compute_s), self.transfers(profile)
        plan = POLICIES[policy](transfers, conditions, first_step)
        in_turn = self.ordered()
        order = [name for name in launches(transfers, plan, conditions) if name in in_turn]
        return StepPlan(plan, order)

    def ordered(self) -> set[Name]:
        """Return (unit, stage) of the exchanges that all ranks must launch in one order."""
        return {
            (index, stage)
            for index, unit in enumerate(self.units)
            for stage in self.sums.ordered(unit.rounds)
        }


def _timed(stages: list[Transfer], profile: Profile, times: UnitTimes) -> list[Transfer]:
    """Give a unit's exchanges its times: those of its codec lie before the first, and between."""
    need_s = profile.backward_s + times.need_s
    decode_s = times.decode_s / len(stages)
    same = [
        replace(transfer, ready_s=times.ready_s, need_s=need_s, decode_s=decode_s)
        for transfer in stages
    ]
    return [replace(same[0], encode_s=times.encode_s), *same[1:]]


def breakpoints(compressors: Mapping[str, Compressor]) -> set[int]:
    """Return the steps at which one of several compressors, by parameter name, changes."""
    return {step for compressor in compressors.values() for step in compressor.breakpoints}
