"""Job: what every rank of a simulation does alike."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from compressa.aggregators.base import Round, Verb
from compressa.compressor import Compressor
from compressa.config import Config, ConfigWarning, assign, load_config
from compressa.engine.device_stream import resources_for
from compressa.engine.measuring.profile_file import ParameterRow, ProfileFile
from compressa.engine.units.phase import Phase, StepPlan
from compressa.engine.units.sums import Sums
from compressa.engine.units.units import UnitSizes, build_units
from compressa.parameters import Layout, ParameterInfo
from compressa.schedulers import Profile, UnitTimes
from compressa.simulation.network import Network
from compressa.simulation.phantoms import Rates, rates_of
from compressa.simulation.scenario import Scenario

_LEAST_PART_BYTES = 256  # parts are multiples of 64


class Unit(NamedTuple):
    """A unit, as far as it counts here.

    Attributes:
        name: For people.
        parameters: Names of those in it.
        rounds: What its aggregator asks for.
        times: When it is ready and needed.
        rates: What its codec takes.
    """

    name: str
    parameters: tuple[str, ...]
    rounds: tuple[Round, ...]
    times: UnitTimes
    rates: Rates


@dataclass(frozen=True)
class Job:
    """What is simulated.

    Attributes:
        scenario: As asked for.
        units: In the order in which backward readies them.
        step_plan: What all ranks follow.
        backward_s: From the first gradient to the last.
        before_s: What is computed after that and before the forward begins to use parameters.
        forward_s: The forward, as far as parameters are waited for in it; else 0.
        after_s: What is computed after that and before the first gradient.
        alike: Whether all ranks do the same at the same time.
    """

    scenario: Scenario
    units: tuple[Unit, ...]
    step_plan: StepPlan
    backward_s: float
    before_s: float
    forward_s: float
    after_s: float
    alike: bool

    @property
    def hosts(self) -> int:
        """How many ranks there are."""
        return self.scenario.hosts

    @property
    def compute_s(self) -> float:
        """What a step takes if nothing is waited for: F + B."""
        return self.backward_s + self.before_s + self.forward_s + self.after_s

    @property
    def by_need(self) -> list[int]:
        """The units as the forward uses them, the first one first; of equals, the last ready."""
        count = range(len(self.units))
        return sorted(count, key=lambda unit: (self.units[unit].times.need_s, -unit))

    def network(self) -> Network:
        """Return a new network of these hosts."""
        return self.scenario.network(self.hosts, alike=self.alike)


def job_of(scenario: Scenario) -> Job:
    """Work out the units, their exchanges, times and plan.

    Raises:
        ConfigError: The configuration does not fit the parameters.
        BackendUnavailable: There is not enough memory for one rank's state.
    """
    file = scenario.file
    phase, measured = (_phase(scenario, hosts) for hosts in (scenario.hosts, file.ranks))
    forward_s, needs = _needs(scenario)
    times = _unit_times(scenario, [unit.layout for unit in phase.units], needs)
    profile = Profile(tuple(times), forward_s, file.backward_s)
    step_plan = phase.plan(scenario.config.schedule.policy, 0, profile)
    world = scenario.world(0, file.ranks)
    units = tuple(
        Unit(
            unit.layout.name,
            tuple(segment.parameter.name for segment in unit.layout.segments),
            unit.aggregator.rounds,
            each,
            rates_of(then.aggregator.rounds, each, world, measured.sums),
        )
        for unit, then, each in zip(phase.units, measured.units, times, strict=True)
    )
    rest_s = max(file.computing_s - file.backward_s - forward_s, 0.0)
    after_s = min(file.loss_s, rest_s) if scenario.overlap else 0.0
    return Job(
        scenario,
        units,
        step_plan,
        file.backward_s,
        rest_s - after_s,
        forward_s,
        after_s,
        alike=not scenario.jitter
        and all(_alike(scenario, phase.sums, unit.rounds) for unit in units),
    )


def _alike(scenario: Scenario, sums: Sums, rounds: Sequence[Round]) -> bool:
    """Whether no rank has another part than the others in exchanges, but for some bytes."""
    cut = [round_ for round_ in rounds if round_.verb is Verb.ALL_REDUCE]
    least_bytes = scenario.hosts * _LEAST_PART_BYTES
    return all(sums.plan(round_).symmetric for round_ in rounds) and all(
        round_.capacity_bytes >= least_bytes for round_ in cut
    )


def _phase(scenario: Scenario, hosts: int) -> Phase:
    """Return the units, and what carries them, on so many hosts."""
    file, config, infos = scenario.file, scenario.config, scenario.file.infos
    compressors = _compressors_of(config, infos)
    step = file.step
    if scenario.recompressed:
        step = max([step, *(b for c in compressors.values() for b in c.breakpoints)])
    sums = scenario.sums(scenario.network(hosts, alike=True).ends[0])
    with resources_for("the state of one rank"):
        world = scenario.world(0, hosts)
        return Phase(infos, compressors, step, UnitSizes.of(config), world, sums)


def _needs(scenario: Scenario) -> tuple[float, Mapping[str, float]]:
    """Return how long the forward takes, and when it uses each parameter.

    It was measured in the first passes, which may be slow: it takes no longer than what backward
    leaves of the computing. Where nobody has measured it, it takes all of that, and is taken to
    mirror backward.
    """
    file = scenario.file
    if not scenario.overlap:
        return 0.0, {}
    left_s = max(file.computing_s - file.backward_s, 0.0)
    if not file.forward_s:
        return left_s, {row.name: left_s * _early(row, file) for row in file.parameters}
    forward_s = min(file.forward_s, left_s)
    scale = forward_s / file.forward_s
    return forward_s, {row.name: scale * row.need_s for row in file.parameters}


def _early(row: ParameterRow, file: ProfileFile) -> float:
    ready_s = min(row.ready_s, file.backward_s)
    return 1 - ready_s / file.backward_s if file.backward_s else 0.0


def _unit_times(
    scenario: Scenario, layouts: Sequence[Layout], needs: Mapping[str, float]
) -> list[UnitTimes]:
    """Return each unit's times: those that were measured, or what follows from them for others.

    Where units are cut in another way, a codec's time goes to parameters by their elements, and
    from there to the units that hold them; these are ready when the last of their parameters is.
    Of another compression nothing is known of codecs.

    Args:
        scenario: What was measured, and what is to be simulated.
        layouts: The units.
        needs: By parameter name, when the forward uses it; those that are missing, at once.
    """
    file = scenario.file
    known = {row.name: row.times for row in file.units}
    same = not scenario.recompressed and [each.name for each in layouts] == [*known]
    ready = {row.name: row.ready_s for row in file.parameters}
    codecs = {} if same or scenario.recompressed else _codec_times(scenario)
    found = []
    for layout in layouts:
        names = [segment.parameter.name for segment in layout.segments]
        need_s = min(needs.get(name, 0.0) for name in names)
        if same:
            found.append(replace(known[layout.name], need_s=need_s))
            continue
        shares = [(codecs.get(s.parameter.name, (0.0, 0.0)), s.elems) for s in layout.segments]
        encode_s, decode_s = (sum(each[i] * elems for each, elems in shares) for i in (0, 1))
        found.append(UnitTimes(max(ready[name] for name in names), need_s, encode_s, decode_s))
    return found


def _codec_times(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """By parameter: seconds of encoding and of decoding for each element, as measured."""
    file = scenario.file
    known = {row.name: row.times for row in file.units}
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for layout in _measured_layouts(scenario):
        times = known.get(layout.name, UnitTimes())
        for segment in layout.segments:
            share = segment.elems / layout.elems / segment.parameter.elems
            sums[segment.parameter.name][0] += times.encode_s * share
            sums[segment.parameter.name][1] += times.decode_s * share
    return {name: (encode_s, decode_s) for name, (encode_s, decode_s) in sums.items()}


def _measured_layouts(scenario: Scenario) -> list[Layout]:
    file = scenario.file
    config, infos = load_config(file.configuration), file.infos
    compressors = _compressors_of(config, infos)
    now = {p.name: compressors[p.name].at(file.step).for_parameter(p) for p in infos}
    return [unit.layout for unit in build_units(infos, now, UnitSizes.of(config))]


def _compressors_of(config: Config, parameters: Sequence[ParameterInfo]) -> dict[str, Compressor]:
    """Return the compressor of each parameter; of rules without effect was told when measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return assign(config, parameters)
