"""Job: what every rank of a simulation does alike."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from compressa.aggregators.base import Round, State, World
from compressa.config import ConfigWarning, assign
from compressa.engine.lanes import resources_for
from compressa.engine.phase import Course, Phase
from compressa.engine.profile_file import ParameterRow, ProfileFile
from compressa.engine.sums import Sums
from compressa.schedulers import Link, Plan, Profile, UnitTimes
from compressa.simulation.loads import Rates, rates_of
from compressa.simulation.network import Network
from compressa.simulation.scenario import Scenario
from compressa.transports.base import Transport

_CHUNK_BYTES, _CREDIT_BYTES = 256 << 10, 512 << 10  # where nobody says anything


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
        course: What all ranks follow.
        link: With the chunks and the window of the plan.
        backward_s: From the first gradient to the last.
        before_s: What is computed after that and before the forward begins to use parameters.
        forward_s: The forward, as far as parameters are waited for in it; else 0.
        after_s: What is computed after that and before the first gradient.
    """

    scenario: Scenario
    units: tuple[Unit, ...]
    course: Course
    link: Link
    backward_s: float
    before_s: float
    forward_s: float
    after_s: float

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

    def sums(self, transport: Transport) -> Sums:
        """Return what carries a rank's exchanges."""
        return _sums(self.scenario, transport)

    def network(self) -> Network:
        """Return a new network of these hosts."""
        return _network(self.scenario, self.link, self.hosts)

    def world(self, rank: int) -> World:
        """Return a rank's place."""
        return _world(self.scenario, rank, self.hosts)


def job_of(scenario: Scenario) -> Job:
    """Work out the units, their exchanges, times and plan.

    Raises:
        ConfigError: The configuration does not fit the parameters.
        BackendUnavailable: There is not enough memory for one rank's state.
    """
    file, config, hosts = scenario.file, scenario.config, scenario.hosts
    here = _network(scenario, scenario.link, hosts).ends[0]
    phase = _phase(scenario, _sums(scenario, here), _world(scenario, 0, hosts))
    before = _network(scenario, scenario.link, file.ranks).ends[0]
    there = _sums(scenario, before), _world(scenario, 0, file.ranks)
    measured = phase if hosts == file.ranks else _phase(scenario, *there)
    forward_s, needs = _needs(scenario)
    names = [[s.parameter.name for s in unit.layout.segments] for unit in phase.units]
    times = _times(scenario, [unit.layout.name for unit in phase.units], names, needs)
    course = phase.plan(
        config.schedule.policy, 0, Profile(tuple(times), forward_s, file.backward_s)
    )
    link = _sized(scenario, course.plan)
    units = tuple(
        Unit(
            unit.layout.name,
            tuple(own),
            unit.aggregator.rounds,
            each,
            rates_of(then.aggregator.rounds, each, there[1], there[0]),
        )
        for unit, then, own, each in zip(phase.units, measured.units, names, times, strict=True)
    )
    rest_s = max(file.computing_s - file.backward_s - forward_s, 0.0)
    after_s = min(file.loss_s, rest_s) if scenario.overlap else 0.0
    return Job(scenario, units, course, link, file.backward_s, rest_s - after_s, forward_s, after_s)


def _sized(scenario: Scenario, plan: Plan) -> Link:
    """Return the link with the chunks and the window that come of a plan and the settings."""
    exchange = scenario.config.exchange
    chunk_bytes, credit_bytes = exchange.chunk_bytes, exchange.credit_bytes
    chunk_bytes = min(chunk_bytes or _CHUNK_BYTES, plan.chunk_bytes or _CHUNK_BYTES)
    credit_bytes = min(credit_bytes or _CREDIT_BYTES, plan.credit_bytes or _CREDIT_BYTES)
    return replace(scenario.link, chunk_bytes=chunk_bytes, credit_bytes=credit_bytes)


def _phase(scenario: Scenario, sums: Sums, world: World) -> Phase:
    file, config = scenario.file, scenario.config
    infos = file.infos
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # they were told when it was measured
        compressors = assign(config, infos)
    step = file.step
    if scenario.recompressed:
        step = max([step, *(b for c in compressors.values() for b in c.breakpoints)])
    with resources_for("the state of one rank"):
        return Phase(infos, compressors, step, config.exchange, world, sums)


def _sums(scenario: Scenario, transport: Transport) -> Sums:
    return Sums(transport, scenario.config.exchange.algorithm, costs=scenario.costs)


def _world(scenario: Scenario, rank: int, size: int) -> World:
    config = scenario.config
    kind, inside = config.exchange.kind, config.exchange.inside
    return World(rank, size, config.engine.seed, kind, State(), inside)


def _network(scenario: Scenario, link: Link, hosts: int) -> Network:
    file = scenario.file
    backend = file.backend_sums and scenario.config.schedule.pace_bits_per_s is None
    reduce_s = 0.0 if file.link is None else file.link.reduce_s
    return Network(hosts, link, reduce_s, backend=backend)


def _needs(scenario: Scenario) -> tuple[float, Mapping[str, float]]:
    """Return how long the forward takes, and when it uses each parameter.

    Where nobody has measured it, it is taken to mirror backward, in the time that is left.
    """
    file = scenario.file
    if not scenario.overlap:
        return 0.0, {}
    if file.forward_s:
        return file.forward_s, {row.name: row.need_s for row in file.parameters}
    forward_s = max(file.computing_s - file.backward_s, 0.0)
    return forward_s, {row.name: forward_s * _early(row, file) for row in file.parameters}


def _early(row: ParameterRow, file: ProfileFile) -> float:
    ready_s = min(row.ready_s, file.backward_s)
    return 1 - ready_s / file.backward_s if file.backward_s else 0.0


def _times(
    scenario: Scenario,
    names: Sequence[str],
    parameters: Sequence[Sequence[str]],
    needs: Mapping[str, float],
) -> list[UnitTimes]:
    """Return each unit's times: as measured, if it was; else its parameters', and no codec's."""
    file = scenario.file
    known = {} if scenario.recompressed else {row.name: row.times for row in file.units}
    ready = {row.name: row.ready_s for row in file.parameters}
    found = []
    for name, inside in zip(names, parameters, strict=True):
        need_s = min(needs.get(parameter, 0.0) for parameter in inside)
        own = UnitTimes(ready_s=max(ready[parameter] for parameter in inside))
        found.append(replace(known.get(name, own), need_s=need_s))
    return found
